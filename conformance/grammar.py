"""Small regular languages over token ids: what may come next, prefix by prefix.

A grammar is written like a regular expression whose letters are token ids: ``1|2`` either, ``3 4``
one after the other, ``( )`` a group, ``* + ?`` any number of times, at least once, at most once,
and ``.`` any token. ``(4|5)(6 7)*`` is 4 or 5 and then 6 7 any number of times.

An output must always be the beginning of a sentence of the language. A stop token may come where a
sentence may end, and nowhere else; a language with sentences that nothing can follow needs one.
Engines take languages of texts: `spelled` writes one in the engine's own words. The module needs
the standard library alone, since engines' processes import it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from conformance.errors import InvalidDecodingError

LONGEST = 400  # characters
MOST_STATES = 256
LARGEST_ID = 2**31
DEAD = 0  # a token came that may not; what follows is held to nothing
START = 1
Tree = tuple[str, tuple["Tree", ...], int]  # kind, parts, id
_REPEATS = {"*": "star", "+": "plus", "?": "maybe"}


# --- reading --------------------------------------------------------------------------------------


class _Reader:
    """Recursive descent; whatever is wrong is said with its place."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def whole(self) -> Tree:
        tree = self._either(0)
        if self.at < len(self.text):
            raise self._wrong("no ')' without its '('")
        return tree

    def _either(self, depth: int) -> Tree:
        if depth > LONGEST // 8:
            raise self._wrong("groups within groups without end")
        parts = [self._sequence(depth)]
        while self._next() == "|":
            self.at += 1
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else ("either", tuple(parts), 0)

    def _sequence(self, depth: int) -> Tree:
        parts = []
        while (letter := self._next()) not in ("", "|", ")"):
            part = self._one(letter, depth)
            while (mark := self._next()) in _REPEATS and mark:
                self.at += 1
                part = (_REPEATS[mark], (part,), 0)
            parts.append(part)
        if not parts:
            raise self._wrong("a token id where there is none")
        return parts[0] if len(parts) == 1 else ("then", tuple(parts), 0)

    def _one(self, letter: str, depth: int) -> Tree:
        if letter == ".":
            self.at += 1
            return ("any", (), 0)
        if letter == "(":
            self.at += 1
            inner = self._either(depth + 1)
            if self._next() != ")":
                raise self._wrong("a ')'")
            self.at += 1
            return inner
        digits = ""
        while self.at < len(self.text) and self.text[self.at] in "0123456789":
            digits += self.text[self.at]
            self.at += 1
        if not digits or len(digits) > 10 or int(digits) >= LARGEST_ID:
            raise self._wrong("a token id")
        return ("id", (), int(digits))

    def _next(self) -> str:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1
        return self.text[self.at : self.at + 1]

    def _wrong(self, wanted: str) -> InvalidDecodingError:
        return InvalidDecodingError(
            f"a grammar is made of token ids and ( ) | * + ? . as in (1|2)(3 4)*; in "
            f"{self.text!r:.120} there should be {wanted} at character {self.at + 1}"
        )


@lru_cache(maxsize=64)
def tree_of(grammar: str) -> Tree:
    """Read a grammar.

    Raises
    ------
    InvalidDecodingError
        If it is none, or is too long.
    """
    if len(grammar) > LONGEST:
        raise InvalidDecodingError(f"a grammar has at most {LONGEST} characters")
    return _Reader(grammar).whole()


def check(grammar: str, stop: Sequence[int]) -> None:
    """Refuse what is no grammar, one with too many states, and one that can end with nothing to
    follow and no stop token.

    Raises
    ------
    InvalidDecodingError
        If it is one of these.
    """
    named = _ids(tree_of(grammar))
    if both := sorted(set(named) & set(stop)):
        raise InvalidDecodingError(
            f"stop token {both[0]} is also a letter of the grammar; a stop token comes where a "
            "sentence may end, without being said"
        )
    top = max([*named, *stop], default=0)
    # one more token than are named stands for all of those
    automaton(grammar, tuple(stop), min(top + 2, LARGEST_ID))


def _ids(tree: Tree) -> list[int]:
    kind, parts, token = tree
    return [token] if kind == "id" else [i for part in parts for i in _ids(part)]


# --- what may come next ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Automaton:
    """A grammar as a table of states.

    Parameters
    ----------
    follows : tuple of dict of int to int
        Of every state, the tokens that may come and the state after each. State 0 is where what
        may not come has come, state 1 is before the first token.
    ends : tuple of bool
        States in which a sentence may end.
    """

    follows: tuple[dict[int, int], ...]
    ends: tuple[bool, ...]

    def after(self, state: int, token: int) -> int:
        """The state after one more token."""
        return self.follows[state].get(token, DEAD)

    def state_of(self, tokens: Sequence[int]) -> int:
        """The state after an output."""
        state = START
        for token in tokens:
            state = self.after(state, token)
        return state

    def allowed(self, state: int) -> list[int]:
        """Tokens that may come next; none where nothing is held to anything any longer."""
        return sorted(self.follows[state])


@lru_cache(maxsize=64)
def automaton(grammar: str, stop: tuple[int, ...], vocab: int) -> Automaton:
    """The deterministic automaton of a grammar, by the construction of subsets.

    Parameters
    ----------
    grammar : str
        As `tree_of` reads it.
    stop : tuple of int
        Tokens that end an output.
    vocab : int
        How many tokens there are; ids from there on are none.

    Raises
    ------
    InvalidDecodingError
        If it has too many states, or an output can come to where no token may follow.
    """
    nothing = _Net()
    accept = nothing.state()
    start = nothing.add(tree_of(grammar), accept)
    known: dict[frozenset[int], int] = {}
    follows: list[dict[int, int]] = [{}]
    ends = [False]

    def number(states: frozenset[int]) -> int:
        if states not in known:
            if len(follows) > MOST_STATES:
                raise InvalidDecodingError(f"the grammar {grammar!r:.80} has too many states")
            known[states] = len(follows)
            follows.append({})
            ends.append(accept in states)
            waiting.append(states)
        return known[states]

    waiting: list[frozenset[int]] = []
    number(nothing.closed({start}))
    done = 0
    while done < len(waiting):
        states = waiting[done]
        done += 1
        by_token: dict[int, set[int]] = {}
        for token, then in nothing.steps(states, vocab):
            if token not in stop:  # any token, but those
                by_token.setdefault(token, set()).add(then)
        at = known[states]
        for token, then_states in by_token.items():
            follows[at][token] = number(nothing.closed(then_states))
        if ends[at]:  # after a stop token nothing is asked any more
            follows[at] |= {token: at for token in stop if token < vocab}
        if not follows[at]:
            raise InvalidDecodingError(
                f"an output of the grammar {grammar!r:.80} can come to where none of {vocab} "
                "tokens may follow; give it a stop token, or let it go on with a *"
            )
    return Automaton(tuple(follows), tuple(ends))


class _Net:
    """States joined by tokens (None for any) and by nothing; Thompson's construction."""

    def __init__(self) -> None:
        self._silent: list[list[int]] = []
        self._steps: list[list[tuple[int | None, int]]] = []

    def state(self) -> int:
        self._silent.append([])
        self._steps.append([])
        return len(self._silent) - 1

    def add(self, tree: Tree, then: int) -> int:
        """States of a tree that goes on at `then`; where it begins."""
        kind, parts, token = tree
        if kind in ("id", "any"):
            begin = self.state()
            self._steps[begin].append((None if kind == "any" else token, then))
            return begin
        if kind == "then":
            for part in reversed(parts):
                then = self.add(part, then)
            return then
        begin = self.state()
        if kind == "either":
            self._silent[begin] += [self.add(part, then) for part in parts]
            return begin
        again = self.state()
        inner = self.add(parts[0], then if kind == "maybe" else again)
        self._silent[again] += [inner, then]
        self._silent[begin] += [inner] if kind == "plus" else [inner, then]
        return begin

    def closed(self, states: set[int]) -> frozenset[int]:
        found, waiting = set(states), list(states)
        while waiting:
            for then in self._silent[waiting.pop()]:
                if then not in found:
                    found.add(then)
                    waiting.append(then)
        return frozenset(found)

    def steps(self, states: frozenset[int], vocab: int) -> list[tuple[int, int]]:
        found = []
        for state in states:
            for token, then in self._steps[state]:
                ids = range(vocab) if token is None else (token,) if token < vocab else ()
                found += [(i, then) for i in ids]
        return found


# --- in the words of an engine --------------------------------------------------------------------


def spelled(grammar: str, word: Callable[[int], str], vocab: int, joined: str = "") -> str:
    """The language of the texts of a grammar's sentences, as a regular expression or, with a blank
    for `joined`, as the right side of a rule of GBNF.

    Parameters
    ----------
    grammar : str
        As `tree_of` reads it.
    word : callable
        Writes a token.
    vocab : int
        How many there are, for what stands for any of them.
    joined : str
        What stands between two parts of a sequence.
    """
    kinds = {"star": "*", "plus": "+", "maybe": "?"}

    def write(tree: Tree) -> str:
        kind, parts, token = tree
        if kind == "id":
            return word(token)
        if kind == "any":
            return "(" + "|".join(word(i) for i in range(vocab)) + ")"
        if kind == "then":
            return joined.join(write(part) for part in parts)
        if kind == "either":
            return "(" + "|".join(write(part) for part in parts) + ")"
        return "(" + write(parts[0]) + ")" + kinds[kind]

    return write(tree_of(grammar))

"""The words between the benchmark page's tables."""

HOW = """\
## How many tokens until a departure is detected

A pair of laws (p, q) has a heavy-tailed target p over V tokens and a draft q, which is p with noise
on its logits, at the total variation stated. A fault emits some other law; every token counted is
one that went through the rule (bonus tokens, which most faults leave exact, would dilute all
methods alike). KL is the divergence of what is emitted from p.

**A sequential test of level alpha needs at least log(1/alpha) / KL tokens on average** (Wald), even
one that is told which fault it is. Numbers with × are multiples of that bound. It is not a bound
for a test of fixed size at power one half: the best such test, told the fault, needs 0.8 times as
much at alpha = 1e-6, 0.7 times at 0.001 and 0.6 times at 0.01.

The e-process is looked at after every token up to 64 and then each time 3 % more have come; a run
looks less often, so there it can be up to a quarter later.
"""

LEANS = """\
A fault *leans* to q if more than half of its chi-square distance from p lies in the direction of q.
*Not behind an exact chi-square*: at alpha = 1e-6, the level in use, the median of the e-process
against the tokens that Pearson's statistic (vLLM's) needs for power one half when its p-value is
exact. *At the rate to which the incumbents' thresholds can be simulated, 0.001 or 0.01: the
e-process against the best of all incumbents, each at power one half.
"""

BEHIND = """\
**An incumbent held to the same false-alarm rate needs fewer tokens than our e-process in these
cells.** Why: a mixture of many alternatives costs log(1 / prior weight), some 3 to 5 nats whatever
alpha is. That is a third of the budget at 1e-6, and as much as all of it at 0.01. The incumbent is
a test of fixed size at power one half, for which Wald's bound does not hold; the e-process may be
looked at any time. In a vocabulary of 10 a plain chi-square has few directions to waste its power
on. A departure that no alternative describes (*aside*: mass moved between random halves of the
vocabulary) is left to the Dirichlet part. A run has the fixed-N tests besides: the last column.
"""

PUBLISHED = """\
### Published tests as published

Each with its own laws, its own size and its own threshold, written anew from what is public
(sources in `tests/benchmarks/incumbents.py`). *Killed* is the share of runs that reject a faulty
sampler; *needs* is how many times the published size the same test needs to reject half of the
time, by doubling; *ours* is the median number of tokens that our e-process needs on the same laws,
at alpha = 1e-6.
"""

NOT_SEEN = """\
*Not seen*: on those laws the rule emits p, or departs from it too little to be seen within the
limit. In transformers' pair every proposal must be rejected and the residual is p itself, which
hides most faults from any test.
"""

PAIRS = """\
### Every pair

First table: alpha = 1e-6. *50* and *99* are the tokens at which a fixed-N test has that power in
per cent, calculated; for PIT an upper bound. (Our tests simulate the real tests at that size.)
Second table: tokens to power one half, every statistic held to the same false-alarm rate by
simulating exact samplers; our three fixed-N tests share the rate evenly, and *our fixed-N* is the
best of them. – means beyond the limit, or that no threshold holds the rate.
"""

JUDGING = """\
## Time and memory of judging

All tests of one arm, one process of one thread; laws come from memory, no model is asked. Seconds
are of processor time. *Before judging* is the peak of the interpreter with its libraries, the laws
and the evidence.
"""

SHARES = """\
## Time spent outside the engine

Real runs. *Generating* is what the engine's `generate` took, *starting* its process, its imports
and its models: whoever drives the engine waits for both. Both are summed over workers. *Overhead*
is the rest of wall time times workers, as a share of them: planning, carrying answers, reading and
writing evidence, judging while other cores wait. *Judging* is that of the same evidence once more.
"""

ENGINES = """\
## What an adapter costs

The same engine on the same probe, 24 tokens of prompt and 8 of output a request, speculating at
temperature 1: driven by a bare loop in its own Python (`tests/benchmarks/bare`), and through the
suite as `conformance run` asks it, one process, in turn. Medians; the ratio is of pairs of runs.
"""

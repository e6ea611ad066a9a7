"""Judging keeps to one core: the others are the engine's.

The laws' matrices are small, and a BLAS that cuts them up among all cores waits for its own threads
wherever engines work beside it: on two cores with two workers, judging took twice the wall time
and the engines lost a tenth of theirs.
"""

from __future__ import annotations

from threadpoolctl import threadpool_limits


def one_core() -> threadpool_limits:
    """A context in which this process's matrix products run on one thread.

    Processes started inside it are not limited.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> with one_core():
    ...     {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    {1}
    """
    return threadpool_limits(limits=1, user_api="blas")

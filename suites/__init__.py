"""The suites a vendor runs: what is asked of an engine, one file per question.

``pytest --pyargs conformance.suites --engine NAME``, or ``pytest suites --engine NAME`` in a
checkout. Every file asks one question of every case it applies to; the samples are gathered once a
case and shared.
"""

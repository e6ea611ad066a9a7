"""``conformance verify``: everything a bundle claims, worked out again without the engine."""

from conformance.reports.verify.again import judge_again
from conformance.reports.verify.check import Check, Status, Verification
from conformance.reports.verify.whole import verify_bundle

__all__ = ["Check", "Status", "Verification", "judge_again", "verify_bundle"]

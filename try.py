import sys; sys.path.insert(0,'tests'); sys.path.insert(0,'tests/power')
import time
import in_process
from conformance.suite import SUITES
from conformance.adapters.reference import faulty, ReferenceEngine
from conformance.decide import decide
from conformance.gather import Gathered
from conformance.plan import PROFILES, make_plan
from conformance.faults import FAULTS
from conformance.faults.around import AROUND
from conformance.diagnosis.candidates import applicable
from conformance.errors import BadAnswerError
profile=sys.argv[1]; names=sys.argv[2:] or [f.name for f in AROUND]
ds=[d for s in ("ends","processors") for d in SUITES[s]]
plan=make_plan(in_process.cases("mid", ds), PROFILES[profile], seed=0)
ref=ReferenceEngine()
ctrl={}
for c in plan.cases:
    t=time.time()
    arms={a: in_process.gather_runs(ref,c,a,[plan])[0] for a in ("speculative","control")}
    ctrl[c.id]=arms["control"]
    r=decide(plan,Gathered(c,arms),False)
    print("exact", str(c.decoding)[:50], c.workload.requests, r.verdict.verdict.value, r.verdict.why[:80], round(time.time()-t,1), flush=True)
for n in names:
    for c in plan.cases:
        if not applicable(FAULTS[n], c.decoding): continue
        try:
            arms={"speculative": in_process.gather_runs(faulty(n),c,"speculative",[plan])[0],"control":ctrl[c.id]}
        except BadAnswerError as e:
            print(n, str(c.decoding)[:50], "ERROR", e); continue
        r=decide(plan,Gathered(c,arms),False)
        print(n, str(c.decoding)[:50], r.verdict.verdict.value, sorted({f.test for f in r.findings if f.rejected})[:4], flush=True)

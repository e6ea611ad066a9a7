"""The served tier: a server whose model we do not have, judged against itself without speculation.

There is no probe and no law. The server that speculates is compared with a *control arm*, the same
server without speculation, by two-sample tests on the tree of their outputs
(`conformance.statistics.tree`). What can be claimed is therefore relative: speculation does, or
does not, change what plain sampling of this server gives. What both arms do wrong is not seen.

Why a pass is called EXACT all the same
---------------------------------------
EXACT, here, is a statement about speculation, which is what this suite is asked about; a word of
its own would be another exit status and another thing to learn, and INCONCLUSIVE would say that
nothing was found out, which is wrong: a departure of the stated size is ruled out. So the verdict
is EXACT and every sentence beside it says relative to what: the reason, each line of what is ruled
out, the sentence of the run, headline and meaning of the report (`conformance.served.words`).

A difference between the arms says NOT EXACT only where the control arm agrees with itself: a second
control sample, asked in the same random order, goes through the same tests.
"""

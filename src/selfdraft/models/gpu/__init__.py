"""How a pass runs where the host is slower than the device: recorded once, launched as one.

    request -> inputs in one copy -> a graph by key -> choices read back

One plain token (nothing skipped, captured or branched), file by file:
    runner   `GraphRunner.forward` takes a `PassRequest` and finds its route: recorded, prefill, or eager
    memory   `PassBuffers` packs tokens, cache rows, starts and sights of the request, and sends them in one copy
    graphs   `Graphs` finds the recording by its `GraphKey`, or records it now
    forward  what is recorded: `ModuleForward` runs the model's own modules, `FusedForward` (fused) few kernels
             in fixed places (workspace), whose launches are kept for the next skip set
    plain    replays it; the best tokens go to the host as `Sent`, read when somebody asks; meanwhile the pass after
             them runs already (`Ahead`): plain decoding is one pass ahead of the host

The verification of a draft is the same pass, wider: column 0 is the last committed token, the others are the drafted
ones. Where drafts are tested by rejection, the recording after it walks each row's tree by what the draft drew from
(`Choosing.drawn_from`), and verdicts are read instead of choices.

One draft:
    runner   `GraphRunner.draft` takes a `DraftTask` and the request of its first token
    drafts   `Drafts` sends it and runs it, unless it is under way: right after a verification, `accept` finds what is
             kept, moves it together and feeds the next draft, whose first token is launched before the host has read it
    draft    a drafted token chooses, notes and feeds the next one on the device, by the task's recorded rule; the next
             pass begins before the host knows whether it is wanted, and the host only reads whether some row goes on

Prompts: `FusedPrefill` (fused_prefill) takes nine launches a layer for the tokens of all rows, packed into one vector,
recorded by their number. `Prefill` runs the model's own modules, operation by operation, where the fused kernels do not
fit. Neither touches what a pass of other rows that runs ahead has written.

Probes: `Works` (probing) records what strategies ask of them again: plans and scores of skip sets. Their sub-layers run
as in other eager passes, or in five launches each (`FusedBranches`, fused_probe), all rows packed into one vector.

What cannot be recorded runs as in models/eager.py, which is the specification of all of it.
"""

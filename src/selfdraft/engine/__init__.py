"""How a text is generated, file by file.

    engine   `Engine.generate` reads its keywords (keywords), finds the method's parts by name (parts), tokenises (text)
             and starts a `Stream` (stream) of its texts (requests); door refuses what no engine can be built of
    session  `Rows`: texts wait, join, leave; `Session` for requests as they come. live: a text as its reader sees it
    decode   the loop: plan, draft, verify, accept, commit, observe; one round is one pass of the target
    state    the rows: tokens, cache slots, stop rules; prefill
    draft    rows of one cohort with the same skip set, drafter and tree draft together; `Rule` chooses after each
             drafted token. On a GPU the whole chain runs there (models/gpu), else token by token as written here
    verify   one pass of the target over the last token and all that was drafted
    accept   which drafted tokens are the target's own choice; sampling has scores, noise and processors

`writing`: texts that the model writes by itself, and probes of them; `cores`: who else uses the machine.
`method` holds the parts of one call, `knowledge` what was learned about the model; `metrics` and `audit` judge outputs.
The same inside `model.generate` is in the folder integrations.
"""

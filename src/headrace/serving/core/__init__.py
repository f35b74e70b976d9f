"""The protocol core: what can be asked for, and how each inference ends, whatever the protocol.

protocol       the core itself: what can be asked for, submission, the one end; counted there
signature      what a model takes and gives, and the check of an inference against it
sequences      requests in order, between which a model's state is kept
hopeless       what is known to have no chance before it is read
held           requests that have waited for earlier ones of their own client
refusals       who can mend a refusal
counters       everything that is counted, and every measure that a front may show
epoch_logs     event logs: a file per plan, and the batches counted

Words. A client asks for an *inference*: some items (rows) for one model, or one item for an app,
answered together under one deadline. The dispatcher knows *requests*: one item each, so an
inference is one or more requests. An app answers an inference by *calls* of its modules; each call
is an inference to the engine.

An inference ends exactly once, in one of these ways, and is counted there and nowhere else:

    answered   every item computed within the deadline           `Answer`
    late       computed after the deadline: a client gets none   `Late`
    refused    not computed; why, and when to try again          `Refusal`
    failed     a batch that held it could not be computed        `Refusal` whose kind is "failed"
    invalid    it is not what the model takes                    `Invalid`
               or the executor cannot compute it                 `Refusal` whose kind is "invalid"
    cancelled  whoever asked went away, and is told nothing

    submit ──▶ read and checked ──▶ open ──▶ answered | late | refused | failed
                      └▶ invalid     └▶ cancelled

A front speaks a protocol: it reads what was asked, and writes how it ended. It decides nothing of
the above, and counts nothing. The core imports no front and speaks no protocol.
"""

// What a peer finds out about its own device before it offers it: how fast it is.
#pragma once

#include "base/result.h"
#include "peer/backend/backend.h"
#include "plan/device.h"

namespace weft::peer {

// Times small graphs on the backend (peer/service/unit_problems.h), three seconds or so in all, and takes the
// rates with which plan::seconds_of says what they took: each graph tells one number, with those before it. The
// faster ones of several runs, warm, in two rounds. Graphs that multiply grow until a run takes 5 ms, if they
// fit into a 64th of the memory that is free, and into a 16th of what is `offered` (0: that does not matter).
// Blocks; call it on the thread that drives the backend, while nothing else runs there. Errors: the backend's
// own. Not for a null backend: its rates are given.
Result<plan::Rates> measure_rates(Backend& backend, Bytes offered = {});

}  // namespace weft::peer

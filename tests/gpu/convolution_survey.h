// What each engine of cuDNN takes for the convolutions of a network: whether the one that is chosen is the
// right one shows on a card alone.
#pragma once

#include <string>

#include "base/result.h"

namespace weft::test {

// JSON: a list of {"layer", "direction", "arithmetic", "candidates": [{"implementation", "notes", "taken",
// "workspace_bytes", "seconds"[, "apart"]}]}, of ResNet-18 at 224 x 224; "apart": of one with notes that
// may be taken, norm(its result - that of the first without) over the norm. Errors: no such card, or cuDNN's own.
Result<std::string> survey_convolutions(int device, int batch);

}  // namespace weft::test

// A group of ops that has no kernel of its own as a whole: one after another, what lies between them in the
// workspace.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "dag/graph.h"
#include "peer/backend/kernel.h"

namespace weft::peer {

// `make_lone` makes the kernel of one op, whose signature it is given. Errors: its own.
Result<std::unique_ptr<Kernel>> make_sequence(
    const dag::Graph& graph, const GroupSignature& group, int64_t alignment,
    const std::function<Result<std::unique_ptr<Kernel>>(const GroupSignature& lone)>& make_lone);

}  // namespace weft::peer

// What of a model a loss does not reach: nobody learns from it, though it may have been meant to.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dag/loss.h"

namespace weft::dag {

// Trained parameters, and outputs that are floats, which no term of the loss reads, directly or through other
// ops. An output that is made of what a term reads, as a softmax of the logits, is no such output.
struct Unread {
  std::vector<std::string> parameters, outputs;
};
Unread find_unread(const Graph& model, std::span<const LossSpec> losses);
// A warning for each kind that there is.
std::vector<std::string> describe(const Unread& unread);

}  // namespace weft::dag

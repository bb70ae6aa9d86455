// Several devices of one machine: a peer for each, in a process of its own, so that a device that is lost
// takes nobody with it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace weft::cli {

// Runs `weft` with each list of arguments until all have ended; `input` is each one's standard input. SIGINT
// and SIGTERM are handed on. When this process is killed they are told to leave. The exit code: the first
// that is not 0, in the order of the lists. REQUIRES: no other threads. Errors: Internal where none can be
// started.
Result<int> run_each(const std::vector<std::vector<std::string>>& arguments, const std::string& input);

}  // namespace weft::cli

// `weft conformance DIR`: ONNX's own test cases, run op by op.
#pragma once

#include <filesystem>
#include <iosfwd>

namespace weft::cli {

// Walks `directory` recursively for folders that hold model.onnx and test_data_set_*, runs each, and prints a
// line for every case that failed or is unsupported (with its reason), then "N passed, M failed, K
// unsupported". Returns the exit status: 0 when none failed and there was one to run.
// `json`: an event {"event":"case",...} for every case, and {"event":"result",...}.
int run_conformance(const std::filesystem::path& directory, std::ostream& out, bool json = false);

}  // namespace weft::cli

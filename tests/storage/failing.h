// Disks that fail where a test wants them to, and the text of an error.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "storage/files.h"

namespace weft::storage {

// Fails operation `at` (from 1), or from there on all of them, as if the machine had stopped. The count is
// shared with the caller, who learns from it whether the operation came at all.
inline FaultHook fail_at(int at, bool and_after, const std::shared_ptr<int>& count) {
  return [=](std::string_view operation, const std::filesystem::path& path) -> Status {
    ++*count;
    if (*count == at || (and_after && *count > at))
      return fail(ErrorCode::Unavailable, path.string() + ": " + std::string(operation) + ": injected");
    return {};
  };
}

template <typename T>
::testing::AssertionResult fails_with(const Result<T>& result, ErrorCode code, std::string_view part) {
  if (result) return ::testing::AssertionFailure() << "succeeded";
  if (result.error().code == code && result.error().message.find(part) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << to_string(result.error().code) << ": " << result.error().message;
}

}  // namespace weft::storage

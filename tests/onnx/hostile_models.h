// Models that someone made to hurt, by name, and how each is refused.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {

struct HostileModel {
  std::string name;  // external_...: it names files beside itself
  std::function<std::string()> bytes;
  std::set<ErrorCode> codes;
};

std::vector<HostileModel> hostile_models();

}  // namespace weft::onnx::testing

// What is trained of a model that a test has made, and the words in which that is told.
#pragma once

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "dag/onnx/analysis.h"
#include "dag/onnx/roles.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {

inline OnnxModel must_read(const std::string& bytes) {
  auto model = read_bytes(bytes);
  if (!model) throw std::runtime_error(model.error().message);
  return std::move(*model);
}

inline RoleTable judged(const ModelMaker& maker, const RoleOptions& options = {}) {
  const OnnxModel model = must_read(maker.bytes());
  auto table = judge_roles(model, options, look_at(model));
  if (!table) throw std::runtime_error(table.error().message);
  return std::move(*table);
}

inline TensorRow row_of(const RoleTable& table, const std::string& name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const TensorRow& row) { return row.name == name; });
  if (found == table.end()) throw std::runtime_error("no row " + name);
  return *found;
}

inline std::set<std::string> names_of(const RoleTable& table, TensorRole role) {
  std::set<std::string> names;
  for (const TensorRow& row : table)
    if (row.role == role) names.insert(row.name);
  return names;
}

inline bool any_has(const std::vector<std::string>& lines, const std::vector<std::string>& words) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return std::all_of(words.begin(), words.end(),
                       [&](const std::string& word) { return line.find(word) != std::string::npos; });
  });
}

}  // namespace weft::onnx::testing

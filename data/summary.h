// What a data set holds, for people who look at it before they write a job: each column's numbers, what of
// them is not finite, how often each class comes, and the first samples.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/dataset.h"
#include "data/kinds.h"

namespace weft::data {

struct ColumnSummary {
  std::string name;
  dag::TensorSpec sample;
  std::string low, high;  // of what is finite; empty where nothing is
  uint64_t nan = 0, infinite = 0;
  std::string first_not_finite;  // its place
  // Of a column of one whole number a sample, where they are few: how often each comes, by number or class.
  std::vector<std::pair<std::string, uint64_t>> classes;
  std::vector<std::string> first;  // samples, cut short
};

struct Summary {
  uint64_t samples = 0;
  std::vector<ColumnSummary> columns;
  std::vector<std::string> unreadable;  // samples that cannot be read, and why; no more than kUnreadableShown
  uint64_t unreadable_count = 0;
  std::vector<std::string> notes, others;
};

inline constexpr size_t kUnreadableShown = 20;
inline constexpr size_t kClassesShown = 1000;

// Reads every sample once.
Result<Summary> summarise(const Dataset& dataset);

// How a file of this kind is read where nobody says more: a table's fields each as a column, those that hold
// texts as classes; photos at 224 pixels. Unsupported, with what to do, for what is no data.
Result<DataSpec> guess_spec(const std::filesystem::path& path);
// The line of a job file that reads it so.
std::string yaml_of(const DataSpec& spec);

}  // namespace weft::data

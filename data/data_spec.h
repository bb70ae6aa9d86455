// Where samples come from: what a job file says about one data set, as plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <variant>

namespace weft::data {

// Images and labels as MNIST's files hold them. A pixel v becomes (v * scale - mean) / deviation.
struct IdxSpec {
  std::filesystem::path images;
  std::filesystem::path labels;
  double scale = 1;
  double mean = 0;
  double deviation = 1;  // not zero
};

// Arrays by name; the first axis counts the samples.
struct NpzSpec {
  std::filesystem::path path;
};

// The bytes of a file as tokens. The last `validation` of the file (a fraction, in [0, 1)) is kept from
// training: part says which of the two pieces this data set is.
struct TextSpec {
  enum class Part : uint8_t { Training, Validation };
  std::filesystem::path path;
  int64_t sequence_length = 0;
  double validation = 0;
  Part part = Part::Training;
};

using DataSpec = std::variant<IdxSpec, NpzSpec, TextSpec>;

inline constexpr int64_t kSequenceLengthMax = int64_t{1} << 24;

}  // namespace weft::data

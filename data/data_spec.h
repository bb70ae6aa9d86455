// Where samples come from: what a job file says about one data set, as plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

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
  // The arrays that are read; none: all. What else the file holds is not looked at.
  std::vector<std::string> columns{};
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

// The file that holds a column, for messages.
std::filesystem::path file_of(const DataSpec& spec, std::string_view column);

inline constexpr int64_t kSequenceLengthMax = int64_t{1} << 24;

}  // namespace weft::data

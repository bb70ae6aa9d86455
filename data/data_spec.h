// Where samples come from: what a job file says about one data set, as plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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

// What becomes of a column between the file and the model. A number v becomes (v * scale - mean) / deviation,
// in float32; a picture (channels, rows, columns) may be mirrored and cut by chance where it is trained on.
struct Transform {
  double scale = 1;
  // One for all, or one for each entry of the first axis of a sample; none: 0, and 1.
  std::vector<double> mean{}, deviation{};
  bool flip = false;  // half of the samples are mirrored
  uint32_t crop =
      0;  // pixels of an edge: a square of it is cut out, in the middle or by chance; 0: all is taken

  bool changes_numbers() const { return scale != 1 || !mean.empty() || !deviation.empty(); }
  bool is_nothing() const { return !changes_numbers() && !flip && crop == 0; }
  bool operator==(const Transform&) const = default;
};
using Transforms = std::map<std::string, Transform, std::less<>>;  // by column

// Arrays by name; the first axis counts the samples.
struct NpzSpec {
  std::filesystem::path path;
  // The arrays that are read; none: all. What else the file holds is not looked at.
  std::vector<std::string> columns{};
  Transforms transforms{};
};

// A .npy file a column.
struct NpySpec {
  std::map<std::string, std::filesystem::path> arrays;
  Transforms transforms{};
};

// A table of text (RFC 4180) with a header.
struct CsvSpec {
  struct Column {
    std::string name;
    std::vector<std::string> fields;     // of the header
    bool is_list = false;                // a sample is a row of numbers, not one number
    bool has_classes = false;            // texts become classes, counted in the order of their bytes
    std::vector<std::string> classes{};  // in their order, where the job says them
    std::optional<double> missing{};     // what an empty field is
  };
  std::filesystem::path path;
  char separator = ',';
  char decimal = '.';
  std::vector<Column> columns{};
  Transforms transforms{};
  // Whose texts are the classes: of a test set the one that is trained on.
  std::shared_ptr<const CsvSpec> classes_of{};
};

// Photos in a folder of each class, or named by a table with the columns path and label.
struct ImagesSpec {
  std::filesystem::path path;
  uint32_t size = 0;    // pixels of an edge of what the model gets
  uint32_t resize = 0;  // what the shorter edge becomes before the middle is cut out; 0: as needed
  Transform image{.scale = 1.0 / 255};  // crop: `size`, where a photo is cut by chance
  bool has_labels = true;
  bool has_classes = false;                        // of a table: its labels are texts, not numbers
  std::shared_ptr<const ImagesSpec> classes_of{};  // as of CsvSpec

  // Pixels of an edge of what a photo is kept as.
  uint32_t kept() const;
};

// The bytes of a file as tokens, or whole numbers that a tokenizer made of a text before. The last
// `validation` of the file (a fraction, in [0, 1)) is kept from training: part says which of the two pieces
// this data set is.
struct TextSpec {
  enum class Part : uint8_t { Training, Validation };
  std::filesystem::path path;
  int64_t sequence_length = 0;
  double validation = 0;
  Part part = Part::Training;
  uint32_t token_bytes = 1;  // 2, 4: of an unsigned whole number, little-endian
};

// A JSON object a line, each a document: a text, a prompt with what completes it, or a conversation. A
// tokenizer makes tokens of them when the file is opened.
struct JsonlSpec {
  enum class Form : uint8_t { Text, Completion, Messages };
  enum class Packing : uint8_t {
    None,    // a sample holds one document, or a part of one
    Across,  // several, which see each other in attention
    Apart,   // several, which do not: the model takes the column causal_mask
  };
  std::filesystem::path path;
  std::filesystem::path tokenizer{};  // a tokenizer.json; empty: each byte is a token
  Form form = Form::Text;
  // Of an object: the text; the parts of the prompt, a line each, and at the end the completion; the
  // messages.
  std::vector<std::string> fields{};
  std::string chat_template{};  // of Messages; empty: what tokenizer_config.json beside the tokenizer says
  std::string
      end{};  // the token behind each document; empty: what that file says, or the tokenizer's only one
  int64_t sequence_length = 0;
  Packing packing = Packing::None;
  double validation = 0;  // of the documents: the last ones, as of TextSpec
  TextSpec::Part part = TextSpec::Part::Training;
  std::vector<std::string> columns{};  // that are read; none: all
};

using DataSpec = std::variant<IdxSpec, NpzSpec, TextSpec, NpySpec, CsvSpec, ImagesSpec, JsonlSpec>;

// Whether it is a file or two that a broker reads as they are. Others travel as the npz of what was read.
bool travels_as_it_is(const DataSpec& spec);
// Which part of it is kept from training; and that part.
double validation_of(const DataSpec& spec);
DataSpec kept_for_validation(DataSpec spec);
// What changes its columns.
Transforms transforms_of(const DataSpec& spec);
// Leaves out what is not one of these columns.
void keep_columns(DataSpec& spec, const std::vector<std::string>& columns);

// Two of the names that are equal but for the case of ASCII letters; nothing where there are none.
std::optional<std::pair<std::string, std::string>> differ_in_case(const std::vector<std::string_view>& names);

// The file that holds a column, for messages.
std::filesystem::path file_of(const DataSpec& spec, std::string_view column);

inline constexpr int64_t kSequenceLengthMax = int64_t{1} << 24;
inline constexpr uint32_t kEdgeMax = 4096;         // pixels of what a photo becomes
inline constexpr size_t kClassesMax = 1 << 16;     // of a column
inline constexpr size_t kFieldsMax = 1 << 14;      // columns of a table
inline constexpr size_t kTransformListMax = 4096;  // entries of a list of means

}  // namespace weft::data

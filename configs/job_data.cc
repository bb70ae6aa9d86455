#include "configs/job_data.h"

#include <limits>
#include <system_error>

namespace weft::configs {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

data::IdxSpec read_idx(MapReader& reader, const PathRules& rules) {
  data::IdxSpec spec;
  spec.images = read_file_path(reader, "images", "name the idx file of the images", rules);
  spec.labels = read_file_path(reader, "labels", "name the idx file of the labels", rules);
  spec.scale = reader.number("scale", 1, {-kInfinity, kInfinity});
  spec.mean = reader.number("mean", 0, {-kInfinity, kInfinity});
  spec.deviation = reader.number("deviation", 1, {0, kInfinity, /*above_min=*/true});
  return spec;
}

data::TextSpec read_text(MapReader& reader, const PathRules& rules) {
  data::TextSpec spec;
  spec.path = read_file_path(reader, "path", "name the text file", rules);
  const Node* length = reader.require("sequence_length", "say how many bytes a sample has, as 128");
  if (length)
    spec.sequence_length = static_cast<int64_t>(
        reader.parse_count(*length, "sequence_length", 1, static_cast<uint64_t>(data::kSequenceLengthMax))
            .value_or(0));
  spec.validation = reader.number("validation", 0, {0, 1, false, /*below_max=*/true});
  return spec;
}

}  // namespace

std::filesystem::path PathRules::resolve(const std::string& path, const Location& where) const {
  return (where.from_set ? std::filesystem::path(path) : folder / path).lexically_normal();
}

std::filesystem::path read_file_path(MapReader& reader, std::string_view key, std::string_view hint,
                                     const PathRules& rules) {
  const Node* node = reader.require(key, hint);
  return node ? read_file(reader, *node, key, rules) : std::filesystem::path();
}

std::filesystem::path read_file(MapReader& reader, const Node& node, std::string_view key,
                                const PathRules& rules) {
  const auto text = reader.parse_text(node, key);
  if (!text) return {};
  auto path = rules.resolve(*text, node.where);
  std::error_code code;
  if (rules.check_files && !std::filesystem::is_regular_file(path, code)) {
    const bool exists = std::filesystem::exists(path, code);
    reader.problem(
        node.where,
        "`" + reader.path_of(key) + "`: " + path.string() +
            (exists                ? " is not a file; name a file, not a folder"
             : node.where.from_set ? ": no such file; paths given by --set are relative to the current folder"
                                   : ": no such file; paths are relative to the job file's folder"),
        exists ? ErrorCode::InvalidArgument : ErrorCode::NotFound);
  }
  return path;
}

std::optional<data::DataSpec> read_data_spec(const Node& node, const std::string& path,
                                             const PathRules& rules, Problems& problems) {
  enum class Type { Idx, Npz, Text };
  static constexpr Choice<Type> kTypes[] = {{"idx", Type::Idx}, {"npz", Type::Npz}, {"text", Type::Text}};
  MapReader reader(node, path, problems);
  const auto type = reader.choice(reader.require("type", "say idx, npz or text"), "type", kTypes);
  if (!type) return std::nullopt;
  std::optional<data::DataSpec> spec;
  switch (*type) {
    case Type::Idx:
      spec = read_idx(reader, rules);
      break;
    case Type::Npz:
      spec = data::NpzSpec{read_file_path(reader, "path", "name the npz file", rules)};
      break;
    case Type::Text:
      spec = read_text(reader, rules);
      break;
  }
  reader.finish();
  return spec;
}

}  // namespace weft::configs

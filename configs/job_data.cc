#include "configs/job_data.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "configs/job_sections.h"
#include "data/kinds.h"

namespace weft::configs {
namespace {

data::IdxSpec read_idx(MapReader& reader, const PathRules& rules) {
  data::IdxSpec spec;
  spec.images = read_file_path(reader, "images", "name the idx file of the images", rules);
  spec.labels = read_file_path(reader, "labels", "name the idx file of the labels", rules);
  spec.scale = reader.number("scale", 1, {-kInfinity, kInfinity});
  spec.mean = reader.number("mean", 0, {-kInfinity, kInfinity});
  spec.deviation = reader.number("deviation", 1, {0, kInfinity, /*above_min=*/true});
  return spec;
}

// One number, or a list of them.
std::vector<double> read_numbers(MapReader& reader, std::string_view key, Range range) {
  const Node* node = reader.take(key);
  std::vector<double> numbers;
  if (node == nullptr) return numbers;
  const auto add = [&](const Node& item) {
    if (const auto number = reader.parse_number(item, key, range)) numbers.push_back(*number);
  };
  if (node->kind != Node::Kind::Sequence) {
    add(*node);
  } else if (node->items.empty() || node->items.size() > data::kTransformListMax) {
    reader.problem(node->where, "`" + reader.path_of(key) + "` is a list of " +
                                    std::to_string(node->items.size()) + " numbers; it must hold 1 to " +
                                    std::to_string(data::kTransformListMax));
  } else {
    for (const Node& item : node->items) add(item);
  }
  return numbers;
}

void read_mean(MapReader& reader, data::Transform& transform) {
  transform.mean = read_numbers(reader, "mean", {-kInfinity, kInfinity});
  transform.deviation = read_numbers(reader, "deviation", {0, kInfinity, /*above_min=*/true});
}

// What chance does to a picture: one word, or a list of them. Whether it is cut.
bool read_augment(MapReader& reader, data::Transform& transform) {
  const Node* node = reader.take("augment");
  if (node == nullptr) return false;
  bool crops = false;
  const auto add = [&](const Node& word) {
    enum class How { Flip, Crop };
    static constexpr Choice<How> kHow[] = {{"flip", How::Flip}, {"crop", How::Crop}};
    const auto how = reader.choice(&word, "augment", kHow);
    transform.flip = transform.flip || how == How::Flip;
    crops = crops || how == How::Crop;
  };
  if (node->kind != Node::Kind::Sequence) add(*node);
  for (const Node& word : node->items) add(word);
  return crops;
}

// What a map of `columns` says of a column's numbers.
data::Transform read_transform(MapReader& reader) {
  data::Transform transform;
  transform.scale = reader.number("scale", 1, {-kInfinity, kInfinity});
  read_mean(reader, transform);
  return transform;
}

data::Transform read_picture_transform(MapReader& reader) {
  data::Transform transform = read_transform(reader);
  const bool crops = read_augment(reader, transform);
  if (const Node* size = reader.take("size")) {
    if (!crops) reader.problem(size->where, "`" + reader.path_of("size") + "` goes with `augment: crop`");
    transform.crop = static_cast<uint32_t>(reader.parse_count(*size, "size", 1, data::kEdgeMax).value_or(0));
  } else if (crops) {
    reader.problem(reader.where(), "`" + reader.path_of("size") +
                                       "` is missing; with `augment: crop`, say how many pixels an edge has");
  }
  return transform;
}

// `visit(name, node)` of each entry of a map of names.
template <typename Visit>
void each_named(MapReader& reader, const Node& node, std::string_view key, std::string_view example,
                const Visit& visit) {
  if (node.kind != Node::Kind::Map || node.entries.empty())
    return reader.problem(
        node.where, "`" + reader.path_of(key) + "` must be a map of columns, as " + std::string(example));
  for (const Entry& entry : node.entries) visit(entry.key, entry.value);
}

// Of npz and npy.
data::Transforms read_transforms(MapReader& reader, Problems& problems) {
  data::Transforms transforms;
  const Node* node = reader.take("columns");
  if (node == nullptr) return transforms;
  each_named(reader, *node, "columns", "{image: {scale: 0.00392}}",
             [&](const std::string& name, const Node& of) {
               MapReader column(of, reader.path_of("columns") + "." + name, problems);
               transforms[name] = read_picture_transform(column);
               column.finish();
             });
  return transforms;
}

data::NpzSpec read_npz(MapReader& reader, const PathRules& rules, Problems& problems) {
  data::NpzSpec spec{read_file_path(reader, "path", "name the npz file", rules)};
  spec.transforms = read_transforms(reader, problems);
  return spec;
}

data::NpySpec read_npy(MapReader& reader, const PathRules& rules, Problems& problems) {
  data::NpySpec spec;
  constexpr std::string_view kExample = "{image: images.npy, label: labels.npy}";
  if (const Node* node = reader.require("arrays", "name a file for each column, as " + std::string(kExample)))
    each_named(reader, *node, "arrays", kExample, [&](const std::string& name, const Node& file) {
      spec.arrays[name] = read_file(reader, file, "arrays." + name, rules);
    });
  spec.transforms = read_transforms(reader, problems);
  return spec;
}

// ---- csv

std::optional<char> read_sign(MapReader& reader, std::string_view key, char otherwise,
                              std::span<const std::pair<std::string_view, char>> signs) {
  const Node* node = reader.take(key);
  if (node == nullptr) return otherwise;
  const auto text = reader.parse_text(*node, key);
  if (!text) return std::nullopt;
  std::string all;
  for (const auto& [word, sign] : signs) {
    if (*text == word) return sign;
    all += (all.empty() ? "'" : ", '") + std::string(word) + "'";
  }
  reader.problem(node->where, "`" + reader.path_of(key) + "` must be one of " + all);
  return std::nullopt;
}

std::vector<std::string> read_texts(MapReader& reader, const Node& node, std::string_view key, size_t max) {
  std::vector<std::string> texts;
  if (node.items.empty() || node.items.size() > max)
    reader.problem(node.where, "`" + reader.path_of(key) + "` must be a list of 1 to " + std::to_string(max));
  else
    for (const Node& item : node.items)
      if (auto text = reader.parse_text(item, key)) texts.push_back(std::move(*text));
  return texts;
}

// The fields of the header that a column is made of: a name, or a list of names.
void read_fields(MapReader& reader, const Node& node, std::string_view key, data::CsvSpec::Column& column) {
  column.is_list = node.kind == Node::Kind::Sequence;
  if (column.is_list)
    column.fields = read_texts(reader, node, key, data::kFieldsMax);
  else if (const auto field = reader.parse_text(node, key))
    column.fields = {*field};
}

void read_classes(MapReader& reader, data::CsvSpec::Column& column) {
  const Node* node = reader.take("classes");
  if (node == nullptr) return;
  column.has_classes = true;
  if (node->kind == Node::Kind::Sequence) {
    column.classes = read_texts(reader, *node, "classes", data::kClassesMax);
    std::vector<std::string> sorted = column.classes;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      reader.problem(node->where, "`" + reader.path_of("classes") + "` names a class twice");
  } else if (node->kind != Node::Kind::Scalar || node->text != "auto") {
    reader.problem(node->where,
                   "`" + reader.path_of("classes") + "` must be auto, or a list of texts, as [cat, dog]");
  }
}

void read_csv_column(MapReader& reader, const std::string& name, const Node& node, Problems& problems,
                     data::CsvSpec& spec) {
  data::CsvSpec::Column& column = spec.columns.emplace_back();
  column.name = name;
  if (node.kind != Node::Kind::Map) return read_fields(reader, node, "columns." + name, column);
  MapReader map(node, reader.path_of("columns") + "." + name, problems);
  if (const Node* from = map.take("from"))
    read_fields(map, *from, "from", column);
  else
    column.fields = {name};
  read_classes(map, column);
  if (const Node* missing = map.take("missing"))
    column.missing = map.parse_number(*missing, "missing", {-kInfinity, kInfinity});
  const data::Transform transform = read_transform(map);
  if (!transform.is_nothing()) spec.transforms[name] = transform;
  map.finish();
}

data::CsvSpec read_csv(MapReader& reader, const PathRules& rules, Problems& problems) {
  static constexpr std::pair<std::string_view, char> kSeparators[] = {
      {",", ','}, {";", ';'}, {"tab", '\t'}, {"|", '|'}};
  static constexpr std::pair<std::string_view, char> kDecimals[] = {{".", '.'}, {",", ','}};
  constexpr std::string_view kExample = "{x: [a, b], y: label}";
  data::CsvSpec spec;
  spec.path = read_file_path(reader, "path", "name the table", rules);
  spec.separator = read_sign(reader, "separator", ',', kSeparators).value_or(',');
  spec.decimal = read_sign(reader, "decimal", '.', kDecimals).value_or('.');
  if (const Node* node =
          reader.require("columns", "say what of the header makes a column, as " + std::string(kExample)))
    each_named(reader, *node, "columns", kExample, [&](const std::string& name, const Node& of) {
      read_csv_column(reader, name, of, problems, spec);
    });
  if (const Node* missing = reader.take("missing"))
    if (const auto number = reader.parse_number(*missing, "missing", {-kInfinity, kInfinity}))
      for (data::CsvSpec::Column& column : spec.columns)
        if (!column.has_classes && !column.missing) column.missing = number;
  return spec;
}

// ---- images

std::filesystem::path read_photos_path(MapReader& reader, const PathRules& rules) {
  const Node* node = reader.require("path", "name the folder, or a table with the columns path and label");
  if (node == nullptr) return {};
  std::error_code code;
  const auto text = reader.parse_text(*node, "path");
  auto folder = text ? rules.resolve(*text, node->where) : std::filesystem::path();
  if (text && std::filesystem::is_directory(folder, code)) return folder;
  return read_file(reader, *node, "path", rules);
}

data::ImagesSpec read_images(MapReader& reader, const PathRules& rules) {
  data::ImagesSpec spec;
  spec.path = read_photos_path(reader, rules);
  if (const Node* size = reader.require("size", "say how many pixels an edge of a picture has, as 224"))
    spec.size = static_cast<uint32_t>(reader.parse_count(*size, "size", 1, data::kEdgeMax).value_or(0));
  if (const Node* resize = reader.take("resize")) {
    spec.resize = static_cast<uint32_t>(reader.parse_count(*resize, "resize", 1, data::kEdgeMax).value_or(0));
    if (spec.resize != 0 && spec.resize < spec.size)
      reader.problem(resize->where, "`" + reader.path_of("resize") + "` is less than `size`");
  }
  read_mean(reader, spec.image);
  if (read_augment(reader, spec.image)) spec.image.crop = spec.size;
  if (const Node* classes = reader.take("classes")) {
    spec.has_classes = classes->text == "auto";
    if (!spec.has_classes)
      reader.problem(classes->where,
                     "`" + reader.path_of("classes") + "` must be auto, where a table's labels are texts");
  }
  for (const std::vector<double>* list : {&spec.image.mean, &spec.image.deviation})
    if (list->size() == 2 || list->size() > 3)
      reader.problem(reader.where(), "`" + reader.path_of("mean") + "` and `" + reader.path_of("deviation") +
                                         "` are one number, or three: of red, green and blue");
  return spec;
}

data::TextSpec read_text(MapReader& reader, const PathRules& rules, bool of_tokens) {
  data::TextSpec spec;
  spec.path =
      read_file_path(reader, "path", of_tokens ? "name the file of tokens" : "name the text file", rules);
  if (of_tokens) {
    static constexpr Choice<uint32_t> kTypes[] = {{"uint16", 2}, {"uint32", 4}};
    spec.token_bytes = 2;
    if (const Node* dtype = reader.take("dtype"))
      spec.token_bytes = reader.choice(dtype, "dtype", kTypes).value_or(2);
  }
  const Node* length =
      reader.require("sequence_length", of_tokens ? "say how many tokens a sample has, as 1024"
                                                  : "say how many bytes a sample has, as 128");
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
            (exists
                 ? " is not a file; name a file, not a folder; " + data::as_data(data::FileKind::Folder, path)
             : node.where.from_set
                 ? std::string(": no such file; paths given by --set are relative to the current folder")
                 : std::string(": no such file; paths are relative to the job file's folder")),
        exists ? ErrorCode::InvalidArgument : ErrorCode::NotFound);
  }
  return path;
}

namespace {

// What people ask for that is read as something else.
bool is_refused_type(const Node& node, MapReader& reader) {
  static constexpr std::pair<std::string_view, data::FileKind> kOthers[] = {
      {"parquet", data::FileKind::Parquet}, {"pt", data::FileKind::Torch},
      {"pth", data::FileKind::Torch},       {"torch", data::FileKind::Torch},
      {"h5", data::FileKind::Hdf5},         {"hdf5", data::FileKind::Hdf5},
      {"pickle", data::FileKind::Pickle},   {"tar", data::FileKind::Tar},
      {"webdataset", data::FileKind::Tar}};
  for (const auto& [word, kind] : kOthers) {
    if (node.text != word) continue;
    const Node* path = reader.take("path");
    const std::string file = path != nullptr && !path->text.empty() ? path->text : "FILE." + node.text;
    reader.problem(
        node.where,
        "`" + reader.path_of("type") + "`: " + node.text + " is not read; " + data::as_data(kind, file),
        ErrorCode::Unsupported);
    return true;
  }
  return false;
}

// A file of a kind that the type does not read is told by what it is.
void check_kind(const Node& type, const std::filesystem::path& path, std::span<const data::FileKind> reads,
                MapReader& reader) {
  const data::FileKind kind = data::kind_of(path);
  if (kind == data::FileKind::Unknown || kind == data::FileKind::Text ||
      std::find(reads.begin(), reads.end(), kind) != reads.end())
    return;
  const std::string use = data::as_data(kind, path);
  reader.problem(type.where, path.string() + ": is " + std::string(data::name_of(kind)) + ", and `type: " +
                                 type.text + "` does not read it" + (use.empty() ? "" : "; " + use));
}

void check_kinds(const Node& type, const data::DataSpec& spec, MapReader& reader) {
  using enum data::FileKind;
  const auto check = [&](const std::filesystem::path& path, std::initializer_list<data::FileKind> reads) {
    std::error_code code;
    if (std::filesystem::is_regular_file(path, code))
      check_kind(type, path, {reads.begin(), reads.size()}, reader);
  };
  if (const auto* npz = std::get_if<data::NpzSpec>(&spec)) check(npz->path, {Npz, Zip});
  if (const auto* csv = std::get_if<data::CsvSpec>(&spec)) check(csv->path, {Csv, Text, JobFile});
  if (const auto* images = std::get_if<data::ImagesSpec>(&spec)) check(images->path, {Csv, Text, JobFile});
  if (const auto* jsonl = std::get_if<data::JsonlSpec>(&spec))
    check(jsonl->path, {Jsonl, Text, Csv, JobFile});
  if (const auto* npy = std::get_if<data::NpySpec>(&spec))
    for (const auto& [column, path] : npy->arrays) check(path, {Npy});
  if (const auto* idx = std::get_if<data::IdxSpec>(&spec))
    for (const auto& path : {idx->images, idx->labels}) check(path, {Idx, Gzip});
}

}  // namespace

std::optional<data::DataSpec> read_data_spec(const Node& node, const std::string& path,
                                             const PathRules& rules, Problems& problems) {
  enum class Type { Idx, Npz, Text, Tokens, Npy, Csv, Images, Jsonl };
  static constexpr Choice<Type> kTypes[] = {
      {"idx", Type::Idx}, {"npz", Type::Npz}, {"text", Type::Text},     {"tokens", Type::Tokens},
      {"npy", Type::Npy}, {"csv", Type::Csv}, {"images", Type::Images}, {"jsonl", Type::Jsonl}};
  MapReader reader(node, path, problems);
  const Node* named = reader.require("type", "say images, csv, npy, npz, idx, text, tokens or jsonl");
  if (named != nullptr && is_refused_type(*named, reader)) return std::nullopt;
  const auto type = reader.choice(named, "type", kTypes);
  if (!type) return std::nullopt;
  std::optional<data::DataSpec> spec;
  switch (*type) {
    case Type::Idx:
      spec = read_idx(reader, rules);
      break;
    case Type::Npz:
      spec = read_npz(reader, rules, problems);
      break;
    case Type::Text:
      spec = read_text(reader, rules, /*of_tokens=*/false);
      break;
    case Type::Tokens:
      spec = read_text(reader, rules, /*of_tokens=*/true);
      break;
    case Type::Npy:
      spec = read_npy(reader, rules, problems);
      break;
    case Type::Csv:
      spec = read_csv(reader, rules, problems);
      break;
    case Type::Images:
      spec = read_images(reader, rules);
      break;
    case Type::Jsonl:
      spec = read_jsonl(reader, rules);
      break;
  }
  if (rules.check_files) check_kinds(*named, *spec, reader);
  reader.finish();
  return spec;
}

void share_classes(const data::DataSpec& train, data::DataSpec& test) {
  if (const auto* from = std::get_if<data::CsvSpec>(&train))
    if (auto* csv = std::get_if<data::CsvSpec>(&test))
      csv->classes_of = std::make_shared<const data::CsvSpec>(*from);
  if (const auto* from = std::get_if<data::ImagesSpec>(&train))
    if (auto* images = std::get_if<data::ImagesSpec>(&test))
      images->classes_of = std::make_shared<const data::ImagesSpec>(*from);
}

}  // namespace weft::configs

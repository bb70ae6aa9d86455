#include "data/dataset.h"

#include <algorithm>

#include "base/overloaded.h"
#include "data/json_documents.h"
#include "data/photo_list.h"

namespace weft::data {

std::optional<size_t> Dataset::find_column(std::string_view name) const {
  const auto all = columns();
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].name == name) return i;
  return std::nullopt;
}

std::string Dataset::describe() const {
  std::string text = std::to_string(sample_count()) + " samples of ";
  const auto all = columns();
  for (size_t i = 0; i < all.size(); ++i)
    text += (i ? ", " : "") + all[i].name + " " + dag::to_string(all[i].sample);
  return text;
}

std::string Dataset::place_of(uint64_t sample) const {
  return "row " + std::to_string(sample) + " (the first is 0)";
}

uint32_t ImagesSpec::kept() const {
  if (image.crop == 0) return size;
  return resize != 0 ? resize : (size * 8 + 6) / 7;
}

Transforms transforms_of(const DataSpec& spec) {
  return std::visit(
      Overloaded{[](const IdxSpec&) { return Transforms{}; }, [](const TextSpec&) { return Transforms{}; },
                 [](const JsonlSpec&) { return Transforms{}; },
                 [](const ImagesSpec& images) {
                   return Transforms{{"image", images.image}};
                 },
                 [](const auto& other) { return other.transforms; }},
      spec);
}

Result<std::unique_ptr<Dataset>> open_stored(const DataSpec& spec, const OpenOptions& options) {
  using Opened = Result<std::unique_ptr<Dataset>>;
  return std::visit(
      Overloaded{[&](const IdxSpec& idx) -> Opened { return open_idx(idx, options); },
                 [&](const NpzSpec& npz) -> Opened { return open_npz(npz, options); },
                 [&](const TextSpec& text) -> Opened { return open_text(text); },
                 [&](const NpySpec& npy) -> Opened { return open_npy(npy); },
                 [&](const CsvSpec& csv) -> Opened { return open_csv(csv, options); },
                 [&](const ImagesSpec& images) -> Opened { return open_images(images, options); },
                 [&](const JsonlSpec& jsonl) -> Opened { return open_jsonl(jsonl, options); }},
      spec);
}

Result<std::unique_ptr<Dataset>> open_dataset(const DataSpec& spec, const OpenOptions& options) {
  WEFT_TRY(auto stored, open_stored(spec, options));
  return with_transforms(std::move(stored), transforms_of(spec));
}

std::filesystem::path file_of(const DataSpec& spec, std::string_view column) {
  return std::visit(
      Overloaded{[&](const IdxSpec& idx) { return column == "label" ? idx.labels : idx.images; },
                 [&](const NpySpec& npy) {
                   const auto named = npy.arrays.find(std::string(column));
                   const auto any = named != npy.arrays.end() ? named : npy.arrays.begin();
                   return any == npy.arrays.end() ? std::filesystem::path() : any->second;
                 },
                 [](const auto& other) { return other.path; }},
      spec);
}

Result<std::vector<std::filesystem::path>> files_of(const DataSpec& spec) {
  using Files = Result<std::vector<std::filesystem::path>>;
  return std::visit(Overloaded{[](const IdxSpec& idx) -> Files {
                                 return std::vector{idx.images, idx.labels};
                               },
                               [](const NpySpec& npy) -> Files {
                                 std::vector<std::filesystem::path> files;
                                 files.reserve(npy.arrays.size());
                                 for (const auto& [column, path] : npy.arrays) files.push_back(path);
                                 return files;
                               },
                               [](const ImagesSpec& images) -> Files { return files_of_photos(images); },
                               [](const JsonlSpec& jsonl) -> Files { return files_of_jsonl(jsonl); },
                               [](const auto& other) -> Files { return std::vector{other.path}; }},
                    spec);
}

std::optional<std::pair<std::string, std::string>> differ_in_case(
    const std::vector<std::string_view>& names) {
  std::map<std::string, std::string_view> seen;  // by the name in small letters
  for (const std::string_view name : names) {
    std::string small(name);
    for (char& c : small)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const auto [at, is_new] = seen.try_emplace(small, name);
    if (!is_new) return std::pair(std::string(at->second), std::string(name));
  }
  return std::nullopt;
}

bool travels_as_it_is(const DataSpec& spec) {
  return std::holds_alternative<IdxSpec>(spec) || std::holds_alternative<NpzSpec>(spec) ||
         std::holds_alternative<TextSpec>(spec);
}

double validation_of(const DataSpec& spec) {
  return std::visit(
      Overloaded{[](const TextSpec& text) { return text.validation; },
                 [](const JsonlSpec& jsonl) { return jsonl.validation; }, [](const auto&) { return 0.0; }},
      spec);
}

DataSpec kept_for_validation(DataSpec spec) {
  std::visit(Overloaded{[](TextSpec& text) { text.part = TextSpec::Part::Validation; },
                        [](JsonlSpec& jsonl) { jsonl.part = TextSpec::Part::Validation; }, [](auto&) {}},
             spec);
  return spec;
}

void keep_columns(DataSpec& spec, const std::vector<std::string>& columns) {
  const auto is_named = [&](std::string_view name) {
    return std::find(columns.begin(), columns.end(), name) != columns.end();
  };
  if (auto* npz = std::get_if<NpzSpec>(&spec)) npz->columns = columns;
  if (auto* jsonl = std::get_if<JsonlSpec>(&spec)) jsonl->columns = columns;
  if (auto* images = std::get_if<ImagesSpec>(&spec)) images->has_labels = is_named("label");
  // Of these two the job lists the columns itself, and a name that none has is told of later.
  if (auto* npy = std::get_if<NpySpec>(&spec);
      npy &&
      std::any_of(npy->arrays.begin(), npy->arrays.end(), [&](const auto& a) { return is_named(a.first); })) {
    std::erase_if(npy->arrays, [&](const auto& array) { return !is_named(array.first); });
    std::erase_if(npy->transforms, [&](const auto& one) { return !is_named(one.first); });
  }
  if (auto* csv = std::get_if<CsvSpec>(&spec);
      csv && std::any_of(csv->columns.begin(), csv->columns.end(),
                         [&](const auto& c) { return is_named(c.name); })) {
    std::erase_if(csv->columns, [&](const auto& column) { return !is_named(column.name); });
    std::erase_if(csv->transforms, [&](const auto& one) { return !is_named(one.first); });
  }
}

}  // namespace weft::data

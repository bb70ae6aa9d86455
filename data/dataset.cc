#include "data/dataset.h"

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

Result<std::unique_ptr<Dataset>> open_dataset(const DataSpec& spec, const OpenOptions& options) {
  struct Opener {
    const OpenOptions& options;
    Result<std::unique_ptr<Dataset>> operator()(const IdxSpec& idx) const { return open_idx(idx, options); }
    Result<std::unique_ptr<Dataset>> operator()(const NpzSpec& npz) const { return open_npz(npz, options); }
    Result<std::unique_ptr<Dataset>> operator()(const TextSpec& text) const { return open_text(text); }
  };
  return std::visit(Opener{options}, spec);
}

std::filesystem::path file_of(const DataSpec& spec, std::string_view column) {
  if (const auto* idx = std::get_if<IdxSpec>(&spec)) return column == "label" ? idx->labels : idx->images;
  if (const auto* npz = std::get_if<NpzSpec>(&spec)) return npz->path;
  return std::get<TextSpec>(spec).path;
}

}  // namespace weft::data

#include "train/published.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "dag/onnx/files.h"
#include "dag/onnx/outline.h"
#include "data/file.h"

namespace weft::train {
namespace {
namespace fs = std::filesystem;

// With the numbers that it begins with. Errors: what reading says.
Result<weights::SoughtTensor> sought_of(const Digest& sha256, const storage::BlobSource& source,
                                        const dag::TensorSpec& spec) {
  weights::SoughtTensor sought{.sha256 = sha256, .spec = spec};
  WEFT_TRY(const auto file, data::File::open(source.file));
  const auto element = static_cast<uint64_t>(dag::element_size(spec.dtype));
  const auto columns = static_cast<uint64_t>(spec.shape.back()),
             rows = spec.rank() == 2 ? static_cast<uint64_t>(spec.shape[0]) : 1;
  if (columns >= weights::kAnchorNumbers) {
    sought.row.resize(weights::kAnchorNumbers * element);
    WEFT_TRY_STATUS(file->read_at(source.range.offset, sought.row));
  }
  if (rows < weights::kAnchorNumbers) return sought;
  sought.column.resize(weights::kAnchorNumbers * element);
  for (uint64_t row = 0; row < weights::kAnchorNumbers; ++row)
    WEFT_TRY_STATUS(file->read_at(source.range.offset + row * columns * element,
                                  std::span(sought.column).subspan(row * element, element)));
  return sought;
}

// The float lists and matrices among the model's blobs.
Result<std::vector<weights::SoughtTensor>> tensors_of(const configs::Job& job, const Submission& submission) {
  const auto name = [](const fs::path& path) { return path.lexically_normal().generic_string(); };
  std::map<std::pair<std::string, uint64_t>, Digest> blobs;
  for (const auto& [sha256, source] : submission.blobs)
    blobs[{name(source.file), source.range.offset}] = sha256;
  // Not read, so that each says where it lies.
  const auto files = onnx::files_at(job.model);
  WEFT_TRY(const onnx::OnnxModel model, onnx::open_model(*files, /*read_max=*/0));
  std::vector<weights::SoughtTensor> sought;
  for (const auto& [initializer, tensor] : model.weights()) {
    const auto place = model.place_of(initializer);
    const int64_t rank = tensor.spec().rank();
    if (!place || !is_float(tensor.dtype()) || rank < 1 || rank > 2) continue;
    const fs::path file = place->location.empty() ? job.model : job.model.parent_path() / place->location;
    const auto blob = blobs.find({name(file), static_cast<uint64_t>(place->offset)});
    if (blob == blobs.end()) continue;
    const storage::BlobSource& source = submission.blobs.at(blob->second);
    if (source.range.size != static_cast<uint64_t>(tensor.spec().bytes().value)) continue;
    WEFT_TRY(weights::SoughtTensor one, sought_of(blob->second, source, tensor.spec()));
    sought.push_back(std::move(one));
  }
  return sought;
}

}  // namespace

Result<FoundParts> add_parts(const fs::path& folder, const configs::Job& job,
                             std::span<const weights::SoughtTensor> rounded, Submission& submission) {
  WEFT_TRY(std::vector<weights::SoughtTensor> sought, tensors_of(job, submission));
  sought.insert(sought.end(), rounded.begin(), rounded.end());
  WEFT_TRY(const Recipes cuts, weights::find_cuts(folder, sought));
  FoundParts found;
  const auto count = [&](uint64_t bytes) {
    ++found.tensors;
    found.bytes += bytes;
  };
  for (auto& [sha256, recipe] : submission.recipes) {
    const auto cut = cuts.find(recipe.source);
    if (cut == cuts.end() || recipe.cut) continue;
    recipe.source = cut->second.source;
    recipe.source_size = cut->second.source_size;
    recipe.cut = cut->second.cut;
    count(dag::bytes_of(recipe).value_or(0));
  }
  for (const auto& [sha256, recipe] : cuts)
    if (submission.blobs.contains(sha256)) {
      submission.recipes.insert_or_assign(sha256, recipe);
      count(submission.blobs.at(sha256).range.size);
    }
  return found;
}

}  // namespace weft::train

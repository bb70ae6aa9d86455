#include "train/stored_base.h"

#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/units.h"
#include "dag/onnx/export.h"
#include "dag/onnx/fewer_bits.h"
#include "dag/onnx/outline.h"
#include "dag/onnx/roles.h"
#include "plan/explain.h"
#include "storage/sha256.h"
#include "train/initial_weights.h"

namespace weft::train {
namespace {

using configs::BaseStore;

struct Kept {
  int bits;
  const char* name;
};
std::optional<Kept> kept_in(BaseStore store) {
  switch (store) {
    case BaseStore::Float32:
    case BaseStore::AsIs:
      return std::nullopt;
    case BaseStore::BF16:
      return Kept{16, "bf16"};
    case BaseStore::Int8:
      return Kept{8, "int8"};
    case BaseStore::Int4:
      return Kept{4, "int4"};
  }
  return std::nullopt;
}

Result<std::set<std::string>> frozen_tensors(const configs::Job& job, const onnx::OnnxModel& model) {
  const onnx::RoleOptions options{.train = job.trained, .freeze = job.freeze, .spare = job.spared};
  auto roles = onnx::judge_roles(model, options, onnx::look_at(model));
  if (!roles) return fail(job.error(roles.error().code, "base.store", roles.error().message));
  std::set<std::string> frozen;
  for (const onnx::TensorRow& row : *roles)
    if (row.role == dag::TensorRole::Frozen) frozen.insert(row.name);
  return frozen;
}

// The model with its first weights.
Status write_first(configs::Job& job, const std::filesystem::path& folder) {
  if (!job.init) return {};
  WEFT_TRY(const onnx::OnnxModel model, onnx::open_model(job.model));
  WEFT_TRY(const InitialWeights initial, InitialWeights::open(job, model));
  const std::filesystem::path written = folder / ("first-" + job.model.filename().string());
  WEFT_TRY_STATUS(onnx::write_model(model, initial.tensors(), written));
  job.model = written;
  job.init.reset();
  return {};
}

Result<onnx::FewerBits> how_of(const configs::Job& job, const Kept& kept, const onnx::OnnxModel& model) {
  WEFT_TRY(std::set<std::string> frozen, frozen_tensors(job, model));
  return onnx::FewerBits{
      .bits = kept.bits,
      .block = job.base.block,
      .takes = [frozen = std::move(frozen)](const std::string& name) { return frozen.contains(name); }};
}

// How each tensor is made of its matrix, as those who have that may know it: as float32, the rows in order.
class RecipeBook {
 public:
  void add(const onnx::MadeOfMatrix& made) {
    auto source = sources_.find(made.source);
    if (source == sources_.end()) source = sources_.emplace(made.source, source_of(made)).first;
    dag::Recipe recipe = source->second;
    recipe.rounding = made.how;
    recipes_.insert_or_assign(*digest_from_hex(storage::sha256_hex(made.made.bytes())), recipe);
  }
  StoredBase told(std::string said) { return {std::move(said), std::move(recipes_), std::move(rounded_)}; }

 private:
  dag::Recipe source_of(const onnx::MadeOfMatrix& made) {
    storage::Sha256 hash;
    weights::SoughtTensor matrix;
    int64_t rows = 0, columns = 0;
    made.numbers([&](std::span<const float> row) {
      const auto bytes = std::as_bytes(row);
      hash.update(bytes);
      if (rows == 0) matrix.row.assign(bytes.begin(), bytes.begin() + anchor_size(row.size()));
      if (rows < kAnchor)
        matrix.column.insert(matrix.column.end(), bytes.begin(), bytes.begin() + sizeof(float));
      columns = static_cast<int64_t>(row.size());
      ++rows;
    });
    if (rows < kAnchor) matrix.column.clear();
    matrix.sha256 = *digest_from_hex(hash.hex());
    matrix.spec = {dag::DType::F32, {rows, columns}};
    rounded_.push_back(matrix);
    return {.source = matrix.sha256, .source_size = static_cast<uint64_t>(matrix.spec.bytes().value)};
  }
  static constexpr int64_t kAnchor = weights::kAnchorNumbers;
  static int64_t anchor_size(size_t columns) {
    return columns < weights::kAnchorNumbers ? 0 : kAnchor * static_cast<int64_t>(sizeof(float));
  }

  std::map<std::string, dag::Recipe> sources_;  // by initializer: without what is done to it
  Recipes recipes_;
  std::vector<weights::SoughtTensor> rounded_;
};

// What was done, in words; from now on the job's base is so.
Result<std::optional<std::string>> said_of(configs::Job& job, const Kept& kept,
                                           const onnx::WrittenBits& written) {
  if (written.matrices == 0)
    return fail(job.error(ErrorCode::InvalidArgument, "base.store",
                          std::string("there is no frozen matrix to keep in ") + kept.name +
                              (written.passed.empty() ? "; `adapters` or `freeze` say what is frozen"
                                                      : ": " + written.passed.front())));
  job.base.store = BaseStore::AsIs;
  std::string text = "base: " + std::to_string(written.matrices) + " matrices are kept in " + kept.name +
                     ", " + plan::show(Bytes{static_cast<int64_t>(written.after)}) + " in place of " +
                     plan::show(Bytes{static_cast<int64_t>(written.before)}) +
                     "; their numbers are rounded, so this is another model";
  if (!written.passed.empty())
    text +=
        "; " + std::to_string(written.passed.size()) + " more stay as they are, as " + written.passed.front();
  return std::optional(text);
}

// `book`: null: nobody is to make it again.
Result<std::optional<std::string>> store(configs::Job& job, const std::filesystem::path& folder,
                                         RecipeBook* book) {
  const auto kept = kept_in(job.base.store);
  if (!kept) return std::optional<std::string>();
  WEFT_TRY_STATUS(write_first(job, folder));
  auto model = onnx::open_model(job.model);
  if (!model) return fail(job.error(model.error().code, "model", model.error().message));
  WEFT_TRY(onnx::FewerBits how, how_of(job, *kept, *model));
  if (book != nullptr) how.on_made = [book](const onnx::MadeOfMatrix& made) { book->add(made); };
  const std::filesystem::path path = folder / job.model.filename();
  WEFT_TRY(const onnx::WrittenBits written, onnx::write_in_fewer_bits(*model, how, path));
  WEFT_TRY(auto said, said_of(job, *kept, written));
  job.model = path;
  return said;
}

}  // namespace

Result<std::optional<std::string>> store_base(configs::Job& job, const std::filesystem::path& folder) {
  return store(job, folder, nullptr);
}

Result<std::optional<std::string>> store_base(configs::Job& job, onnx::OnnxModel& outline) {
  const auto kept = kept_in(job.base.store);
  if (!kept) return std::optional<std::string>();
  WEFT_TRY(const onnx::FewerBits how, how_of(job, *kept, outline));
  WEFT_TRY(onnx::InFewerBits made, onnx::outline_in_fewer_bits(outline, how));
  outline = std::move(made.model);
  return said_of(job, *kept, made.bits);
}

Result<std::optional<StoredBase>> store_base(OpenedJob& opened, const std::filesystem::path& folder) {
  RecipeBook book;
  WEFT_TRY(auto said, store(opened.job, folder, &book));
  if (!said) return std::optional<StoredBase>();
  std::erase_if(opened.tree.entries, [](const configs::Entry& entry) { return entry.key == "base"; });
  return std::optional(book.told(std::move(*said)));
}

}  // namespace weft::train

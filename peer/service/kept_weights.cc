#include "peer/service/kept_weights.h"

#include <new>
#include <optional>
#include <vector>

namespace weft::peer {

namespace {
// Whoever waits for the bytes hears of it, whatever happens.
Result<net::SharedBytes> read_from(const weights::WeightIndex& index, const Digest& sha256,
                                   const std::optional<dag::Recipe>& recipe) {
  try {
    WEFT_TRY(std::vector<std::byte> read, recipe ? index.read(sha256, *recipe) : index.read(sha256));
    const auto held = std::make_shared<const std::vector<std::byte>>(std::move(read));
    return net::SharedBytes{held, *held};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted, "no memory to read a tensor");
  }
}
}  // namespace

void KeptWeights::learn(const proto::AssignStage& assignment) {
  recipes_.erase(assignment.run);
  if (!index_ || assignment.recipes.empty()) return;
  if (recipes_.size() >= proto::kStagesHeldMax) recipes_.erase(recipes_.begin());
  auto& of_run = recipes_[assignment.run];
  for (const proto::BlobRecipe& one : assignment.recipes) of_run.emplace(one.sha256, one.recipe);
}

// Of whose source there is something.
const dag::Recipe* KeptWeights::find_recipe(const Digest& sha256) const {
  for (const auto& [run, recipes] : recipes_)
    if (const auto at = recipes.find(sha256); at != recipes.end() && index_->has_source_of(at->second))
      return &at->second;
  return nullptr;
}

bool KeptWeights::has(const Digest& sha256, uint64_t size) const {
  if (!index_) return false;
  if (const auto found = index_->size_of(sha256)) return *found == size;
  const dag::Recipe* recipe = find_recipe(sha256);
  return recipe != nullptr && dag::bytes_of(*recipe) == size;
}

void KeptWeights::read(const Digest& sha256, std::function<void(Result<net::SharedBytes>)> done) {
  if (!worker_) worker_ = std::make_unique<net::Worker>();
  auto finish = [this, sha256, weak = std::weak_ptr(epoch_), epoch = *epoch_,
                 done = std::move(done)](Result<net::SharedBytes> bytes) {
    const auto now = weak.lock();
    if (!now || *now != epoch) return;
    if (bytes) read_[sha256] = bytes->bytes.size();
    done(std::move(bytes));
  };
  const dag::Recipe* recipe = index_->size_of(sha256) ? nullptr : find_recipe(sha256);
  worker_->post([&loop = loop_, index = index_, sha256,
                 recipe = recipe ? std::optional(*recipe) : std::nullopt, finish = std::move(finish)] {
    const auto bytes = read_from(*index, sha256, recipe);
    loop.post([finish, bytes] { finish(bytes); });
  });
}

std::string KeptWeights::describe(const proto::AssignStage& assignment) const {
  size_t tensors = 0, bytes = 0, all = 0;
  for (const proto::TensorReference& tensor : assignment.tensors) {
    all += static_cast<size_t>(tensor.spec.bytes().value);
    const auto at = read_.find(tensor.sha256);
    if (at == read_.end()) continue;
    ++tensors;
    bytes += at->second;
  }
  if (tensors == 0) return {};
  return "info stage_weights run=" + std::to_string(assignment.run) + " tensors=" + std::to_string(tensors) +
         " bytes=" + std::to_string(bytes) + " of=" + std::to_string(all);
}

}  // namespace weft::peer

#include "peer/service/kept_weights.h"

#include <new>
#include <vector>

namespace weft::peer {

namespace {
// Whoever waits for the bytes hears of it, whatever happens.
Result<net::SharedBytes> read_from(const weights::WeightIndex& index, const Digest& sha256) {
  try {
    WEFT_TRY(std::vector<std::byte> read, index.read(sha256));
    const auto held = std::make_shared<const std::vector<std::byte>>(std::move(read));
    return net::SharedBytes{held, *held};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted, "no memory to read a tensor");
  }
}
}  // namespace

void KeptWeights::read(const Digest& sha256, std::function<void(Result<net::SharedBytes>)> done) {
  if (!worker_) worker_ = std::make_unique<net::Worker>();
  auto finish = [this, sha256, weak = std::weak_ptr(epoch_), epoch = *epoch_,
                 done = std::move(done)](Result<net::SharedBytes> bytes) {
    const auto now = weak.lock();
    if (!now || *now != epoch) return;
    if (bytes) read_[sha256] = bytes->bytes.size();
    done(std::move(bytes));
  };
  worker_->post([&loop = loop_, index = index_, sha256, finish = std::move(finish)] {
    const auto bytes = read_from(*index, sha256);
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

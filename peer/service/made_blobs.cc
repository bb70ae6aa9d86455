#include "peer/service/made_blobs.h"

#include <memory>

#include "storage/sha256.h"

namespace weft::peer {

void MadeBlobs::learn(const proto::AssignStage& assignment) {
  by_run_.erase(assignment.run);
  if (assignment.made.empty()) return;
  if (by_run_.size() >= proto::kStagesHeldMax) by_run_.erase(by_run_.begin());
  std::map<Digest, Tensor>& tensors = by_run_[assignment.run];
  for (const proto::MadeTensor& made : assignment.made) {
    const proto::TensorReference& reference = assignment.tensors[made.tensor];
    if (reference.spec.dtype == dag::DType::F32 && reference.spec.bytes().value <= kMadeBytesMax)
      tensors[reference.sha256] = {reference, made.how};
  }
}

std::optional<net::SharedBytes> MadeBlobs::make(const Digest& sha256) const {
  for (const auto& [run, tensors] : by_run_) {
    const auto at = tensors.find(sha256);
    if (at == tensors.end()) continue;
    const auto& [reference, how] = at->second;
    const auto tensor =
        std::make_shared<const dag::Tensor>(dag::make_value(how, reference.spec, reference.key.name));
    if (digest_from_hex(storage::sha256_hex(tensor->bytes())) == sha256)
      return net::SharedBytes{tensor, tensor->bytes()};
  }
  return std::nullopt;
}

}  // namespace weft::peer

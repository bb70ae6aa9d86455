#include "peer/service/tensor_assembly.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "peer/service/encoding.h"
#include "peer/service/link_queue.h"

namespace weft::peer {

Result<TensorAssembly::Begun> TensorAssembly::begin(const proto::PieceHead& piece, uint64_t first_missing,
                                                    bool is_expected) {
  const auto named = [&] { return "tensor " + std::to_string(piece.number) + " of the link: "; };
  auto at = begun_.find(piece.number);
  const bool is_first = at == begun_.end();
  if (is_first) {
    if (piece.number - first_missing >= kBegunMax)
      return fail(ErrorCode::OutOfRange,
                  named() + "it is begun while number " + std::to_string(first_missing) + " has not come");
    const bool fits = piece.size <= window_bytes_ - std::min(window_bytes_, bytes_);
    if (!fits && !(is_expected && piece.number == first_missing))
      return fail(ErrorCode::ResourceExhausted,
                  named() + std::to_string(piece.size) + " bytes, while " + std::to_string(bytes_) + " of " +
                      std::to_string(begun_.size()) + " others have not come whole; at most " +
                      std::to_string(window_bytes_) + " may be begun");
    const size_t pieces = std::max<size_t>(1, (piece.size + proto::kPieceSize - 1) / proto::kPieceSize);
    at = begun_
             .emplace(piece.number, Tensor{.header = piece.header,
                                           .size = piece.size,
                                           .memory = dag::allocate_tensor_bytes(piece.size),
                                           .has_begun = std::vector<bool>(pieces),
                                           .missing = pieces})
             .first;
    bytes_ += piece.size;
  }
  Tensor& tensor = at->second;
  if (tensor.size != piece.size || !(tensor.header == piece.header))
    return fail(ErrorCode::Corrupted, named() + "two of its pieces say different things of it");
  const size_t index = piece.offset / proto::kPieceSize;
  if (tensor.has_begun[index])
    return fail(ErrorCode::Corrupted,
                named() + "its piece at " + std::to_string(piece.offset) + " comes twice");
  tensor.has_begun[index] = true;
  return Begun{{tensor.memory, tensor.memory.get() + piece.offset}, is_first};
}

std::optional<ReceivedTensor> TensorAssembly::end(const proto::PieceHead& piece) {
  const auto at = begun_.find(piece.number);
  WEFT_CHECK(at != begun_.end());
  Tensor& tensor = at->second;
  if (--tensor.missing > 0) return std::nullopt;
  const bool is_dense = tensor.header.codec.kind == compress::Kind::Dense;
  ReceivedTensor received{
      tensor.header,
      dag::Tensor(is_dense ? tensor.header.spec : payload_spec(tensor.size), std::move(tensor.memory))};
  bytes_ -= tensor.size;
  begun_.erase(at);
  return received;
}

void TensorAssembly::clear() {
  begun_.clear();
  bytes_ = 0;
}

}  // namespace weft::peer

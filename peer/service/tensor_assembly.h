// Tensors of a link whose pieces come one by one, over several connections and in any order: each has its
// memory from its first piece on, and its pieces are received into it. Takes no piece twice, none that
// contradicts another of its tensor, and no more tensors at a time than their sender may begin
// (peer/service/link_queue.h). Belongs to the loop.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "net/frame.h"
#include "peer/service/bulk.h"
#include "proto/codec/codec.h"

namespace weft::peer {

class TensorAssembly {
 public:
  explicit TensorAssembly(uint64_t window_bytes = 0) : window_bytes_(window_bytes) {}

  // A piece has begun to come: where its bytes go. `first_missing`: all tensors below that number have come.
  // `is_expected`: the assignment has such an edge, which bounds its size; others have to fit into the
  // window. Errors: OutOfRange (a number too far ahead), ResourceExhausted (more is begun than may be),
  // Corrupted (a piece that came before, or of another tensor than the number's). REQUIRES: the tensor has
  // not come.
  struct Begun {
    std::shared_ptr<std::byte[]> memory{};  // of the piece
    bool is_first = false;                  // of its tensor
  };
  Result<Begun> begin(const proto::PieceHead& piece, uint64_t first_missing, bool is_expected);
  // All of the piece is in its memory. The tensor, if that was its last one.
  // REQUIRES: begin() took it, and clear() was not called since.
  std::optional<ReceivedTensor> end(const proto::PieceHead& piece);
  // What has not come whole will come again.
  void clear();

  size_t tensors() const { return begun_.size(); }  // begun
  uint64_t bytes() const { return bytes_; }         // of their memory

 private:
  struct Tensor {
    proto::TensorHeader header{};
    uint32_t size = 0;
    std::shared_ptr<std::byte[]> memory{};
    std::vector<bool> has_begun{};  // by piece
    size_t missing = 0;             // pieces
  };
  uint64_t window_bytes_;
  std::map<uint64_t, Tensor> begun_;  // by number
  uint64_t bytes_ = 0;
};

}  // namespace weft::peer

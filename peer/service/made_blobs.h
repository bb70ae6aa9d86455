// Blobs of tensors that assignments say how to make: the peer makes them, and does not fetch them. One
// thread.
#pragma once

#include <map>
#include <optional>

#include "base/digest.h"
#include "net/frame.h"
#include "proto/stage.h"

namespace weft::peer {

class MadeBlobs {
 public:
  // In place of what an earlier assignment of the run said.
  void learn(const proto::AssignStage& assignment);
  // Nothing: no assignment says how, or what comes of it has another hash, as numbers of another machine may;
  // then the blob is to be fetched. At most kMadeBytesMax are made, for others wait meanwhile.
  std::optional<net::SharedBytes> make(const Digest& sha256) const;

  static constexpr int64_t kMadeBytesMax = int64_t{16} << 20;

 private:
  struct Tensor {
    proto::TensorReference reference;
    dag::MadeValue how;
  };
  std::map<proto::JobNumber, std::map<Digest, Tensor>> by_run_;  // of the last runs that named any
};

}  // namespace weft::peer

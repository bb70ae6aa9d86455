#include "broker/jobs/blobs.h"

namespace weft::broker {

void add_blobs(const proto::SubmitJob& submission, BlobsOf which, std::set<Digest>& blobs) {
  for (const proto::PackedFile& file : submission.files)
    if (which == BlobsOf::AllFiles || file.path.rfind("model/", 0) == 0)
      for (const proto::FilePiece& piece : file.pieces)
        if (piece.sha256) blobs.insert(*piece.sha256);
}

void add_blobs(const std::vector<proto::TensorReference>& tensors, std::set<Digest>& blobs) {
  for (const auto& tensor : tensors) blobs.insert(tensor.sha256);
}

}  // namespace weft::broker

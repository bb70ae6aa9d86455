// Which blobs a broker's values speak of.
#pragma once

#include <set>
#include <vector>

#include "base/digest.h"
#include "proto/messages.h"

namespace weft::broker {

enum class BlobsOf { AllFiles, Model };
void add_blobs(const proto::SubmitJob& submission, BlobsOf which, std::set<Digest>& blobs);
void add_blobs(const std::vector<proto::TensorReference>& tensors, std::set<Digest>& blobs);

}  // namespace weft::broker

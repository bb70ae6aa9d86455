// The bulk connection: requests and answers, any number under way, told apart by `request`
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "proto/hello.h"
#include "proto/stage.h"

namespace weft::proto {

// To the broker, or to a peer that was named as a source. What follows is for peers; the broker gives blobs
// as they are.
struct GetBlob {
  uint64_t request = 0;
  Digest sha256{};
  uint64_t rate = 0;             // bytes a second, for what is not urgent; 0: at once
  std::optional<Digest> base{};  // that the asker has, of as many bytes
};
struct PutBlob {
  uint64_t request = 0;
  Digest sha256{};
  uint64_t size = 0;
  bool durable = true;           // false: need not survive the broker
  bool packed = false;           // chunks carry its units (storage/packed.h)
  std::optional<Digest> base{};  // of as many bytes, that the other side has: packed are the differences
};
struct BlobAnswer {  // to GetBlob: chunks of `size` bytes in all follow; to PutBlob: stored, or there already
  uint64_t request = 0;
  ErrorCode code = ErrorCode::Internal;
  std::string message{};  // empty: granted
  uint64_t size = 0;
  bool packed = false;    // from a peer: chunks carry its units (storage/packed.h)
  bool has_base = false;  // packed are the differences to the base that was named
};
struct HaveBlobs {
  uint64_t request = 0;
  std::vector<Digest> blobs{};
  bool durable = true;                // what is there is made durable before the answer
  std::vector<BlobRecipe> recipes{};  // of some of the blobs: then the broker may make them
};
struct MissingBlobs {
  uint64_t request = 0;
  std::vector<Digest> blobs{};
};
struct GetMicrobatch {
  uint64_t request = 0;
  JobNumber run = 0;
  Secret data_key{};
  ProgramKind program = ProgramKind::Train;
  uint64_t step = 0;  // Train
  uint32_t microbatch = 0;
  std::vector<std::string> inputs{};
  bool narrows =
      false;  // whole numbers may come in a shorter type (dag/narrow.h), as from minor version 30 on
};
struct MicrobatchAnswer {
  uint64_t request = 0;
  ErrorCode code = ErrorCode::Internal;
  std::string message{};  // empty: a tensor frame for each input follows, in the order asked
  uint64_t sample_position = 0;
  uint32_t valid_count = 0;
};

}  // namespace weft::proto

// Internal to the gate: what it knows of one connection.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "broker/service/gate.h"
#include "storage/packed.h"

namespace weft::broker {

struct Gate::Client {
  uint64_t number = 0;
  net::ConnectionPtr connection;
  Instant since;
  bool introduced = false;                         // its Hello went to the core
  std::optional<proto::Role> role;                 // admitted
  std::map<proto::JobNumber, uint64_t> following;  // the sequence sent last

  std::deque<proto::GetBlob> downloads;  // wait until what was sent has gone
  // The blob that comes in. Chunks are written on the files' thread, in order.
  struct Upload {
    uint64_t request = 0;
    uint64_t left = 0;                              // bytes that are still to come of one that is not packed
    std::optional<storage::PackedFraming> framing;  // of one that is
    bool is_complete() const { return framing ? framing->is_complete() : left == 0; }
    // The files' thread's.
    std::unique_ptr<storage::BlobStore::Writer> writer;  // none: what comes is not wanted
    storage::BlobView base;
    std::unique_ptr<storage::Unpacker> unpacker;
    std::optional<Error> error;
    // Errors: NotFound, without the base or with one of another size.
    Status begin_unpacking(const storage::BlobStore& blobs, const proto::PutBlob& request);
    Status write(std::span<const std::byte> bytes);
  };
  std::shared_ptr<Upload> upload;
  size_t bytes_in_work = 0;  // chunks and requests given to the files' thread
  size_t bytes_in_core = 0;  // messages given to the core and not taken yet
  bool is_paused = false;    // nothing is read from it
  size_t microbatches_in_work = 0;
};

}  // namespace weft::broker

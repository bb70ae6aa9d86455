// Internal to the gate: what it knows of one connection.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "broker/service/gate.h"
#include "storage/packed.h"

namespace weft::broker {

// A blob that comes in. Chunks are written on the files' thread, in order.
struct Gate::Upload {
  uint64_t request = 0;
  PeerId key{};
  Digest sha256{};
  uint64_t size = 0;
  uint64_t left = 0;                              // bytes that are still to come of one that is not packed
  std::optional<storage::PackedFraming> framing;  // of one that is
  bool is_complete() const { return framing ? framing->is_complete() : left == 0; }
  // The files' thread's.
  bool is_counted = false;                             // for its key
  std::unique_ptr<storage::BlobStore::Writer> writer;  // none: what comes is not wanted
  storage::BlobView base;
  std::unique_ptr<storage::Unpacker> unpacker;
  std::optional<Error> error;
  // Errors: NotFound, without the base or with one of another size.
  Status begin_unpacking(const storage::BlobStore& blobs, const proto::PutBlob& request);
  Status write(std::span<const std::byte> bytes);
  proto::BlobAnswer answer() const {
    return {request, error ? error->code : ErrorCode::Internal, error ? error->message : "", 0};
  }
};

struct Gate::Client {
  uint64_t number = 0;
  net::ConnectionPtr connection;
  Instant since;
  bool introduced = false;          // its Hello went to the core
  std::optional<proto::Role> role;  // admitted

  // Whether it takes what is sent.
  uint64_t bytes_sent = 0;  // at the last tick
  Instant taking_at{};      // when it was last seen to take something, or had taken all

  // Of a peer.
  uint64_t bytes_received = 0;           // at the last tick
  std::optional<proto::StageWork> work;  // of the newest heartbeat, not told yet

  // A blob on its way out. What somebody waits for has its own, before what nobody does.
  struct Download {
    uint64_t request = 0;
    std::unique_ptr<storage::BlobStore::Reader> blob;
    uint64_t done = 0;  // bytes
  };
  struct Downloads {
    std::deque<proto::GetBlob> waiting;
    std::optional<Download> now;
    bool is_empty() const { return waiting.empty() && !now; }
  };
  Downloads loads, spares;
  bool has_spare_turn = false;

  std::shared_ptr<Upload> upload;  // the last that was begun

  std::deque<proto::GetMicrobatch> microbatches;  // to be read, those of feeds that are open
  size_t microbatches_in_work = 0;                // with those, and those that wait for a feed
  bool reads_microbatch = false;

  size_t bytes_queued() const { return connection->stats().bytes_queued; }
};

}  // namespace weft::broker

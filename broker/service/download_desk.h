// Blobs out, a piece at a time, as they are taken. What a stage loads goes at once; copies for peers that
// stand by nobody waits for: those have a piece each, in turn, and keep to what the line may carry of them.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "broker/service/desk.h"
#include "broker/service/egress.h"
#include "storage/blob_store.h"

namespace weft::broker {

class DownloadDesk {
 public:
  class Outside {
   public:
    virtual ~Outside() = default;
    virtual void spare_turn_in(Duration wait) = 0;  // calls send_spares() then; the last one holds
  };
  // `rate`: as Egress. `blobs` outlives this.
  DownloadDesk(Connections& connections, Outside& outside, const storage::BlobStore& blobs, uint64_t rate)
      : connections_(connections), outside_(outside), blobs_(blobs), egress_(rate) {}

  void get(ConnectionId to, const proto::GetBlob& request, Instant now);
  void go_on(ConnectionId to, Instant now);  // it has room
  void send_spares(Instant now);
  void end(ConnectionId to);

 private:
  struct Download {
    uint64_t request = 0;
    std::unique_ptr<storage::BlobStore::Reader> blob{};
    uint64_t done = 0;  // bytes
  };
  struct Downloads {
    std::deque<proto::GetBlob> waiting{};
    std::optional<Download> now{};
    bool is_empty() const { return waiting.empty() && !now; }
  };
  struct Taker {
    Downloads loads{}, spares{};
    bool has_spare_turn = false;
  };
  void send_loads(ConnectionId to, Instant now);
  void want_spare_turn(ConnectionId to, Instant now);
  bool begin(ConnectionId to, Downloads& downloads);
  bool send_piece(ConnectionId to, Downloads& downloads, Instant now);

  Connections& connections_;
  Outside& outside_;
  const storage::BlobStore& blobs_;
  Egress egress_;
  std::map<ConnectionId, Taker> takers_;
  std::deque<ConnectionId> spare_turns_;
};

}  // namespace weft::broker

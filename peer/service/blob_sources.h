// Blobs straight from the peers that hold them: each is asked as the broker is on the bulk connection
// (GetBlob, answered by BlobAnswer and chunks), over a connection of its own, which is dialled with the first
// request and closed once nothing has been asked for a while. What comes may be packed, as differences to an
// earlier copy that both have. Belongs to the loop.
//
// Nobody vouches for a source. A blob has the hash that was asked for; memory is taken as its bytes come, and
// for no more than was asked for. Whoever sends anything else is believed in nothing that is under way.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "net/connection.h"
#include "net/loop.h"
#include "peer/service/bulk.h"
#include "peer/service/dial_guard.h"
#include "proto/messages.h"
#include "security/identity.h"

namespace weft::peer {

class BlobSources {
 public:
  struct Options {
    net::Loop* loop = nullptr;
    const security::Identity* identity = nullptr;
    // The emulated link to a region; nothing: not emulated.
    std::function<std::optional<net::Shape>(const std::string& region)> shape{};
    MayDial may_dial{};                                    // of addresses that the broker names
    Duration address_deadline = std::chrono::seconds(5);   // for each address in turn
    Duration silence_deadline = std::chrono::seconds(30);  // in which something comes of what is under way
    // After which a connection that is not used is closed, and one over which no blob came: before the other
    // side does so, which might be just when something is asked for.
    Duration idle_deadline = std::chrono::seconds(60), stranger_deadline = std::chrono::seconds(2);
    size_t sources_max = 64;         // with a connection, or dialled
    size_t at_once_max = 32;         // requests under way to one; the others wait
    std::function<Instant()> now{};  // for tests; else the loop's
  };
  struct Wanted {
    Digest sha256{};
    uint64_t size_max = 0;                      // bytes; a base is of use where it has as many
    uint64_t rate = 0;                          // bytes a second, for the source to keep to; 0: at once
    std::optional<BulkTransfers::Base> base{};  // that this side has
  };
  using Done = std::function<void(Result<std::vector<std::byte>>)>;

  explicit BlobSources(Options options);
  ~BlobSources();  // what is under way is told: Cancelled

  // Calls back once. NotFound: the source does not have it. Unavailable: there is no way to the source, the
  // connection was lost, it refuses, or there are too many sources already. Timeout: nothing came of anything
  // under way. Corrupted: other bytes, or what no honest source sends; for all that was under way there.
  // ResourceExhausted: no memory here.
  void get(const proto::BlobSource& source, Wanted wanted, Done done);
  // All connections end, and all that is under way.
  void abandon(const Error& error);
  void on_tick();  // several times a second while there are sources
  size_t sources() const { return sources_.size(); }

 private:
  struct Source;
  using SourcePtr = std::shared_ptr<Source>;

  void dial(const SourcePtr& source);
  void on_dialled(const SourcePtr& source, Result<net::ConnectionPtr> result);
  void start(const SourcePtr& source);
  void ask(const SourcePtr& source);
  void on_frame(const SourcePtr& source, const net::InFrame& frame);
  static Status take(Source& source, const net::InFrame& frame);
  void end(const SourcePtr& source, const Error& error);
  bool make_room();
  void look_after(const SourcePtr& source, Instant now);
  Instant now() const { return options_.now ? options_.now() : options_.loop->now(); }

  const Options options_;
  std::map<PeerId, SourcePtr> sources_;  // callbacks hold them weakly
  Instant ticked_{};
};

}  // namespace weft::peer

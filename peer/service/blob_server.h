// Gives other peers the blobs that this one holds: copies of its stage's state, to those that stand by for
// it. A connection whose first frame asks for a blob is taken over, and its requests are answered in order,
// one at a time: GetBlob, BlobAnswer, chunks. Larger blobs are packed on the way (storage/packed.h), on a
// thread of their own, as differences to a copy that the asker has, where this side has it too.
//
// What may wait is paced, over all connections together, for all pass one uplink, and gives way to the
// tensors of the step (pacer.h); what somebody needs at once, and what stands before it, is not.
//
// Specification: who asks is any key that knows a blob's hash, and may be hostile. It has at most
// Options::requests_max requests waiting and kQueuedMax bytes and a chunk queued; a connection that has taken
// nothing of what is queued for a while, has not asked for anything for a while, or says anything but GetBlob
// is closed, and beyond Options::connections_max none is taken. A stranger, who was given nothing of what it
// asked for, is closed much sooner, as soon as another one comes where there is no room, and after as many
// questions as may wait.
// Rationale: the bytes of a blob are held while it is being sent, so an asker that is slow costs that memory,
// and nothing else; one whose bytes do not leave holds up no other's pace. Belongs to the loop.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "net/connection.h"
#include "net/loop.h"
#include "net/worker.h"
#include "peer/service/pacer.h"
#include "proto/messages.h"
#include "storage/packed.h"

namespace weft::peer {

// What a peer has of what was asked for: no owner where it has not. The base has as many bytes as the blob.
struct HeldBlob {
  net::SharedBytes bytes{}, base{};
};

class BlobServer {
 public:
  using Found = std::function<void(HeldBlob)>;
  struct Options {
    net::Loop* loop = nullptr;
    // Asked when a request's turn comes, so that one that waits holds no copy that others have done with.
    // Answers later, on the loop.
    std::function<void(const proto::GetBlob& request, Found found)> look_up;
    std::function<bool()> yields{};  // tensors of the step wait for the uplink
    // Some of it was given to somebody; `whole`: with that all of it.
    std::function<void(const Digest& sha256, bool whole)> on_giving{};
    size_t connections_max = 32;
    size_t requests_max = 256;                             // waiting, of one connection
    Duration stall_deadline = std::chrono::seconds(30);    // something queued leaves within
    Duration idle_deadline = std::chrono::seconds(120);    // something is asked for within
    Duration stranger_deadline = std::chrono::seconds(5);  // the same, of who was given nothing
    std::function<Instant()> now{};                        // for tests; else the loop's
  };
  explicit BlobServer(Options options);
  ~BlobServer();

  // A connection that began so is taken over: what comes of it goes to the returned handlers. Nothing: there
  // are too many.
  std::optional<net::Connection::Handlers> offer(const net::ConnectionPtr& connection,
                                                 const proto::GetBlob& first);
  // What copies may take of the uplink, bytes a second; 0: no limit but what each asks for.
  void set_rate(uint64_t rate) { rate_ = rate; }
  void on_tick();  // several times a second
  size_t connections() const { return askers_.size(); }

 private:
  struct Asker;
  using AskerPtr = std::shared_ptr<Asker>;

  void on_frame(const AskerPtr& asker, const net::InFrame& frame);
  void on_request(const AskerPtr& asker, const proto::GetBlob& request);
  void work(const AskerPtr& asker);
  void advance(const AskerPtr& asker);
  void look_up(const AskerPtr& asker);
  void on_found(const AskerPtr& asker, const proto::GetBlob& request, HeldBlob held);
  void on_missing(const AskerPtr& asker, const proto::GetBlob& request);
  void send_chunk(const AskerPtr& asker, size_t size);
  void pack_ahead(const AskerPtr& asker);
  void on_packed(const AskerPtr& asker, std::vector<std::byte> unit);
  void await_turn(const AskerPtr& asker);
  void take_turns();
  uint64_t rate_of(const Asker& asker) const;
  uint64_t line_rate() const;
  CopyPacer::Line line() const;
  void look_after(const AskerPtr& asker, Instant at);
  bool make_room();
  void drop(const AskerPtr& asker, Duration goodbye = {});
  Instant now() const { return options_.now ? options_.now() : options_.loop->now(); }

  const Options options_;
  std::vector<AskerPtr> askers_;  // callbacks hold them weakly
  uint64_t rate_ = 0;
  Instant ticked_{};

  // Of what is paced: who has a chunk ready, in the order of their turns.
  std::deque<AskerPtr> turns_;
  CopyPacer pacer_;
  std::unique_ptr<net::Loop::Timer> turn_timer_;

  const std::shared_ptr<storage::Packer> packer_ = std::make_shared<storage::Packer>();  // the worker's
  std::unique_ptr<net::Worker> worker_;  // from the first blob that is packed on
};

}  // namespace weft::peer

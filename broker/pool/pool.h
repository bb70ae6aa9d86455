// Who is here: peers by key and by connection, what they said of themselves, how fast they turned out to be,
// and who is left out. Knows no job but by its number.
//
// A peer that was here once stays listed as gone. One that fails one stage after another is left out for a
// time that doubles (30 s to an hour), and one that its operator banned until the ban is lifted: a ban is
// durable and is of the key.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "broker/step.h"

namespace weft::broker {

// A stage that a peer was given.
struct StageGiven {
  bool serves = false;  // else it trains, evaluates or predicts
  // What it takes: of the device, and for copies of the host. Nothing: it has yet to say.
  struct Taken {
    int64_t programs = 0, copies = 0;
  };
  std::optional<Taken> memory{};
};

struct Peer {
  PeerId id{};
  std::string name{};
  std::string software{};
  proto::DeviceReport device{};
  std::optional<ConnectionId> connection{};  // nothing: gone
  Instant connected_at{};                    // when the last one began
  uint64_t instance = 0;
  uint32_t minor = 0;  // of the protocol
  std::string address{};
  Instant last_heard{};
  bool draining = false;
  std::optional<proto::Drain> goodbye{};  // what it said when it was to go; nothing: it never did
  std::optional<bool> was_dialled{};      // whether its address answered who tried last; nothing: nobody did
  bool device_lost = false;               // it said so: it goes, and with it what it holds
  bool other_version = false;
  std::map<proto::JobNumber, StageGiven> stages{};  // by the job that each is of
  std::optional<double> times{};                    // its tasks took so many times what its rates promise
  std::optional<Instant> said_at{};                 // a line of its own went into the log
  uint32_t stages_failed = 0;                       // in a row, of whichever job, without a step between
  std::optional<Instant> left_out_until{};

  bool is_idle() const { return stages.empty(); }
  // Others can reach it to fetch what it has.
  bool may_give() const {
    return connection && minor >= proto::kProtocolMinorOfDirectCopies && !device.addresses.empty();
  }
  bool works_on(proto::JobNumber job) const { return stages.contains(job); }
  std::vector<proto::JobNumber> jobs() const;
};

struct PoolOptions {
  Duration lease = std::chrono::seconds(10);
  // A peer that failed `failures_max` stages in a row is left out, at first for `left_out`.
  uint32_t failures_max = 3;
  Duration left_out = std::chrono::seconds(30), left_out_max = std::chrono::hours(1);
  size_t gone_max = 512;  // that are remembered
  Duration gone_for = std::chrono::hours(24 * 7);
};

class Pool {
 public:
  Pool(PoolOptions options, Step& step) : options_(options), step_(step) {}

  const std::map<PeerId, Peer>& peers() const { return peers_; }
  std::map<PeerId, Peer>& peers() { return peers_; }
  Peer& at(const PeerId& id) { return peers_.at(id); }
  const Peer& at(const PeerId& id) const { return peers_.at(id); }
  Peer* find(const PeerId& id);
  const Peer* find(const PeerId& id) const;
  Peer* find_by_name(const std::string& name);
  Peer* of(ConnectionId connection);
  Peer& enter(const PeerId& id);  // listed from now on

  void connect(Peer& peer, ConnectionId connection);  // REQUIRES: it has none
  void disconnect(Peer& peer);
  // Who is gone is remembered, with its name and how fast it was; but a stranger may come with as many keys
  // as it likes. Of too many those are forgotten who have been gone longest, and who has been gone for
  // `gone_for`; but for who is needed, serves or is banned. Who they were.
  std::vector<PeerId> forget_gone(const std::function<bool(const PeerId&)>& is_needed);
  // To whoever has it; nothing where it is gone. `bytes`: of the message, where they are at hand.
  void send(const PeerId& id, proto::Message message, proto::EncodedBytes bytes = {});
  // Nothing was heard of them for a lease before `until`.
  std::vector<PeerId> late(Instant until) const;
  // As wanted, unless another one has that name.
  std::string free_name(const std::string& wanted, const PeerId& id) const;

  // Nobody has a stage of the job any more.
  void release(proto::JobNumber job);
  // Another one whenever somebody may be free who was not.
  uint64_t version() const { return version_; }
  void changed() { ++version_; }

  // A stage that it had failed by its own fault. True: it is left out from now on.
  bool failed_stage(Peer& peer);
  void did_step(Peer& peer) { peer.stages_failed = 0; }
  bool is_left_out(const Peer& peer) const {
    return peer.left_out_until && *peer.left_out_until > step_.now.monotonic;
  }
  // Those whose time is over may be had again.
  void let_in();
  bool is_banned(const PeerId& id) const { return banned_.contains(id); }
  void load_ban(const PeerId& id) { banned_.insert(id); }
  void ban(const PeerId& id, const std::string& name, bool banned);

  // By fingerprint, what devices of it need for their tasks, times what their rates promise: the one in the
  // middle.
  std::map<std::string, double> usual_times() const;
  // As measured, else as others of its kind.
  static double times_of(const Peer& peer, const std::map<std::string, double>& usual);
  void learn_times(Peer& peer, double times);
  // Another one whenever a device is not as fast as it was believed to be.
  uint64_t devices_version() const { return devices_version_; }

  proto::PeerStatus status_of(const Peer& peer) const;
  std::string state_of(const Peer& peer) const;  // for people: PeerStatus::state
  proto::PeerList list() const;

 private:
  PoolOptions options_;
  Step& step_;
  std::map<PeerId, Peer> peers_;
  std::map<ConnectionId, PeerId> by_connection_;
  std::set<PeerId> banned_;
  uint64_t version_ = 1;
  uint64_t devices_version_ = 0;
};

// Where a connection comes from, without its port.
std::string_view host_of(std::string_view address);

}  // namespace weft::broker

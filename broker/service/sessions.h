// Who is at a gate: its connections, what each was admitted as, whether it takes what it is sent and when
// something was last heard of it. Has no socket and no clock: connections are handed in.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/service/desk.h"
#include "net/connection.h"

namespace weft::broker {

struct Session {
  ConnectionId number = 0;
  net::ConnectionPtr connection{};
  Instant since{};
  bool introduced = false;            // its Hello went to the core
  std::optional<proto::Role> role{};  // admitted

  // Whether it takes what is sent.
  uint64_t bytes_sent = 0;  // when it was last looked at
  Instant taking_at{};      // when it was last seen to take something, or had taken all

  // Of a peer.
  uint64_t bytes_received = 0;                 // when it was last looked at
  std::optional<proto::StageWork> work{};      // of the newest heartbeat, not told yet
  std::optional<proto::StageSaving> saving{};  // likewise

  const PeerId& key() const { return connection->remote(); }
  size_t bytes_queued() const { return connection->stats().bytes_queued; }
};
using SessionPtr = std::shared_ptr<Session>;

class Sessions final : public Connections {
 public:
  // What comes of a session until it ends. REQUIRES: whoever listens lets its pointers go then.
  class Outside {
   public:
    virtual ~Outside() = default;
    virtual void on_begun(ConnectionId which) = 0;
    virtual void on_frame(const SessionPtr& from, net::InFrame frame) = 0;
    virtual void on_frame_begun(const SessionPtr& from, size_t size) = 0;
    virtual void on_drained(const SessionPtr& whose) = 0;
    // Once. `why`: nothing, the core ended it.
    virtual void on_ended(const SessionPtr& whose, const std::optional<std::string>& why) = 0;
  };
  struct Options {
    ConnectionId first = 1;
    Duration greeting_deadline{}, unread_deadline{};  // as GateOptions
    std::function<void(const std::string& line)> log{};
  };
  Sessions(Options options, Outside& outside)
      : options_(std::move(options)), outside_(outside), next_(options_.first) {}

  void begin(const net::ConnectionPtr& connection, Instant now);  // where there are too many, it is closed
  SessionPtr find(ConnectionId which) const;                      // null: it has ended
  std::vector<SessionPtr> all() const;
  // At once, whatever was sent.
  void close(const SessionPtr& which, const std::string& why);
  void close_all_of(const PeerId& key, const std::string& why);
  // After what was sent has gone, as the core says.
  void let_go(ConnectionId which);
  // The gate ends: nobody is told.
  void close_all();

  size_t bytes_queued(ConnectionId to) const override;
  void send(ConnectionId to, const proto::Message& message) override;
  void send_frame(ConnectionId to, net::OutFrame frame) override;
  void refuse(ConnectionId which, const Error& why) override;

  // Looked at now and then.
  void close_who_do_not_greet(Instant now);
  // Where the gate was held up itself, nobody is judged.
  void close_who_do_not_read(Instant now, bool was_held_up);
  // Peers of which something came since the last time, or that are held up.
  std::vector<Heard> heard(Instant now, const std::function<bool(ConnectionId)>& is_held_up);

 private:
  void end(const SessionPtr& which, const std::optional<std::string>& why);

  Options options_;
  Outside& outside_;
  ConnectionId next_;
  std::map<ConnectionId, SessionPtr> all_;
};

}  // namespace weft::broker

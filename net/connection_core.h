// A connection from its handshake to its end. The Connection that users hold is a shell around it: a core
// may outlive the shell to send what is queued. Internal to net/.
#pragma once

#include "net/connection.h"
#include "net/context.h"
#include "net/frame_reader.h"
#include "net/send_queue.h"
#include "net/tls.h"

namespace weft::net {

class ConnectionCore final : public std::enable_shared_from_this<ConnectionCore>,
                             Transport::Events,
                             LoopMember {
 public:
  // `token` is held until the core has let go of its socket: it counts connections.
  ConnectionCore(std::shared_ptr<Context> context, std::unique_ptr<Tls> tls, std::shared_ptr<void> token);
  ~ConnectionCore();
  ConnectionCore(const ConnectionCore&) = delete;
  ConnectionCore& operator=(const ConnectionCore&) = delete;

  // Calls back once, from the loop or at once, unless the core is destroyed first.
  void handshake(std::function<void(Status)> on_done);
  // The shell. REQUIRES: the handshake is complete.
  ConnectionPtr make_connection();

  // As in Connection.
  const PeerId& remote() const { return remote_; }
  const std::string& address() const { return address_; }
  std::string local_address() const { return tls_ ? tls_->transport().local_address() : std::string(); }
  void set_limits(const ConnectionLimits& limits);
  void start(Connection::Handlers handlers);
  void send(OutFrame frame);
  void pause_reading(bool paused);
  void close(Duration deadline);
  ConnectionStats stats() const;
  size_t unsent() const;

 private:
  enum class Phase : uint8_t { Handshake, Idle, Open, Failing, Closing, Closed };

  void on_readable() override;
  void on_writable() override;
  void on_loop_destroyed() override;

  void pump_handshake();
  void pump_read();
  bool read_some();      // false: there is no more for now
  bool receive();        // false: there is no more for now
  bool begin_payload();  // false: refused
  Result<PayloadPlace> ask_for_place();
  bool goes_on(const Status& status);  // false: it has failed, and ends with that
  void deliver();
  void pump_write();
  Io write_record();
  void pump_goodbye();  // what comes in while closing is thrown away
  void fail_later(Error error);
  void report_closed();
  void lose(Error error);  // writing has failed: what was received goes first
  void release();          // the socket, at once
  void post(void (ConnectionCore::*work)());

  const std::shared_ptr<Context> context_;
  std::unique_ptr<Tls> tls_;  // null after release()
  std::shared_ptr<void> token_;
  Phase phase_ = Phase::Handshake;
  PeerId remote_;
  std::string address_;
  ConnectionLimits limits_;
  ConnectionStats stats_;
  std::function<void(Status)> on_handshake_;
  std::shared_ptr<Connection::Handlers> handlers_;  // shared with the call that is running
  Alarm deadline_;

  // receiving
  bool is_paused_ = false;
  bool is_read_posted_ = false;
  FrameReader reader_;
  size_t read_budget_ = 0;
  std::optional<Error> lost_;  // why it ends, or will once all that came is read

  // sending
  bool is_write_posted_ = false;
  bool is_write_blocked_ = false;
  bool is_goodbye_said_ = false, is_goodbye_sent_ = false;
  bool has_undrained_ = false;
  SendQueue queue_;
};

}  // namespace weft::net

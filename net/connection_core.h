// A connection from its handshake to its end. The Connection that users hold is a shell around it: a core
// may outlive the shell to send what is queued. Internal to net/.
#pragma once

#include <deque>

#include "net/connection.h"
#include "net/context.h"
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
  bool begin_frame();    // from a whole header in the record; false: refused
  bool begin_payload();  // with as much of it in the record as the receiver wants to see; false: refused
  bool place_payload();
  std::span<std::byte> payload_room();  // where the next bytes go; empty: no memory
  bool hold_payload(size_t size);       // false: no memory
  void refuse_for_memory();
  Io read_record();
  void deliver();
  void pump_write();
  Io write_record();
  size_t copy_frames(std::span<std::byte> into);
  void end_front();
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
  std::unique_ptr<std::byte[]> record_in_;
  size_t record_begin_ = 0, record_end_ = 0;
  enum class Inside : uint8_t { Header, Head, Payload };
  Inside inside_ = Inside::Header;  // what of a frame comes next
  InFrame frame_;
  size_t frame_size_ = 0, frame_received_ = 0;
  size_t read_budget_ = 0;
  std::optional<Error> lost_;  // why it ends, or will once all that came is read

  // sending
  bool is_write_posted_ = false;
  bool is_write_blocked_ = false;
  bool is_goodbye_said_ = false, is_goodbye_sent_ = false;
  bool has_undrained_ = false;
  std::deque<OutFrame> queue_;
  size_t first_count_ = 0;  // of those that go first: nothing stands before them but a frame that has begun
  size_t queue_size_ = 0;
  size_t heads_size_ = 0;  // bytes of the heads of frames in the queue
  size_t front_done_ = 0;  // bytes of the first frame, header included, that were written
  std::unique_ptr<std::byte[]> record_out_;
};

}  // namespace weft::net

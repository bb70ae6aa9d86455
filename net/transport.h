// Bytes in order both ways, without waiting: what TLS and the relay stand on. A socket, or a socket behind an
// emulated link. Outside of net/ only a port of another protocol uses it (byte_listener.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <system_error>

namespace weft::net {

struct Io {
  enum class State : uint8_t { Ready, Blocked, End, Failed };
  State state = State::Ready;
  size_t size = 0;          // Ready: at least one byte
  std::error_code error{};  // Failed
  static Io ready(size_t size) { return {State::Ready, size, {}}; }
  static Io blocked() { return {State::Blocked, 0, {}}; }
  static Io end() { return {State::End, 0, {}}; }
  static Io failed(std::error_code error) { return {State::Failed, 0, error}; }
};

class Transport {
 public:
  // Whoever owns the transport. Called from the loop, once for each arming; it may destroy the transport.
  class Events {
   public:
    virtual void on_readable() = 0;
    virtual void on_writable() = 0;

   protected:
    ~Events() = default;
  };
  virtual ~Transport() = default;

  virtual void set_events(Events* events) = 0;
  virtual Io read(std::span<std::byte> into) = 0;         // REQUIRES: not empty
  virtual Io write(std::span<const std::byte> from) = 0;  // REQUIRES: not empty; maybe a part of it
  virtual void arm_read() = 0;                            // on_readable when read() would not be Blocked
  virtual void arm_write() = 0;
  // Of what was written: bytes that have not left yet, for they wait in the system's buffer or before the
  // emulated line.
  virtual size_t unsent() = 0;
  // As in ConnectionLimits; what an emulated line holds is the line's to say.
  virtual void set_unsent_max(size_t size) = 0;
  virtual void shut_write() = 0;  // the end, after what was written
  virtual void close() = 0;       // at once; no event comes after it
  virtual const std::string& remote_address() const = 0;
  // This side's, while it is open; empty: unknown.
  virtual std::string local_address() const { return {}; }
};
using TransportPtr = std::unique_ptr<Transport>;

}  // namespace weft::net

// Measures the link to another peer when the broker asks: over a connection that is made as those of tensors
// are, dialled, waited for, or through the broker's relay. First the round trip of a few small messages, then
// each way in turn: the receiver asks for bytes and counts how fast they come (probe_meter.h), the sender
// sends no more than it was asked for. One probe at a time; belongs to the loop.
//
//   C:ProbeHello, S:ProbeHello, then for the side that dialled, and after its Turn for the other:
//   Ping, Pong, five times or for 300 ms; Ask, probe frames, Ask, ... ; Turn
//
// Nobody else can make it send or receive: the other end has the key that the broker named and shows the
// round. What comes without being asked for ends the probe.
#pragma once

#include <functional>
#include <memory>

#include "peer/service/links.h"
#include "peer/service/probe_meter.h"

namespace weft::peer {

class Prober {
 public:
  // Of LinkOptions: loop, identity, relay, shape, may_dial.
  Prober(LinkOptions options, std::function<void(proto::ProbeReport)> on_report);
  ~Prober();

  // Ends the one before, of which nothing is reported any more. Of this one on_report comes once.
  void begin(proto::ProbeLink asked);
  // There are other things to do: what was not measured is reported as Cancelled.
  void end(const std::string& why);
  // As in Links.
  std::optional<net::Connection::Handlers> offer(const net::ConnectionPtr& connection,
                                                 const proto::ProbeHello& hello);
  void on_invitation(const proto::Secret& ticket);

 private:
  enum class State : uint8_t { Connecting, Greeting, Pinging, Measuring, Serving };
  struct Probe;
  using ProbePtr = std::shared_ptr<Probe>;

  void dial();
  void dial_relay();
  void on_dialled(bool relayed, Result<net::ConnectionPtr> result);
  net::ConnectOptions connect_options(const std::string& region) const;
  net::Connection::Handlers handlers() const;
  void take(const net::ConnectionPtr& connection, bool relayed);
  void on_frame(const net::InFrame& frame);
  void on_message(const proto::Message& message);
  void on_say(const proto::ProbeSay& say);
  void on_bytes(uint64_t size);
  void ping();
  void on_pong(uint64_t number);
  void measure();
  void ask();
  void end_measuring();
  void serve(uint64_t asked);
  void on_turn();
  void say(proto::ProbeWord word, uint64_t number = 0);
  void report();
  void fail(const Error& error);
  void finish(Duration goodbye = {});

  const LinkOptions options_;
  const std::function<void(proto::ProbeReport)> on_report_;
  ProbePtr probe_;  // callbacks hold it weakly
};

}  // namespace weft::peer

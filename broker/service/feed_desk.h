// Microbatches of data for the stages that read them: asked for under a feed's key, read one after the other
// as they are taken.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "broker/service/desk.h"
#include "broker/service/feeder.h"

namespace weft::broker {

class FeedDesk {
 public:
  class Outside {
   public:
    virtual ~Outside() = default;
    virtual void read(ConnectionId whose, const proto::GetMicrobatch& request) = 0;  // later: on_read()
  };
  FeedDesk(Connections& connections, Outside& outside) : connections_(connections), outside_(outside) {}

  // What is asked for under its key waits until the feed is open. An open one may get another key.
  void expect(proto::JobNumber job, const proto::Secret& key);
  void open(proto::JobNumber job, const proto::Secret& key);
  void close(proto::JobNumber job);

  void get(ConnectionId whose, const proto::GetMicrobatch& request);
  void on_read(ConnectionId whose, const proto::GetMicrobatch& request, const Result<Feeder::Fed>& read);
  void go_on(ConnectionId whose);  // it has room
  void end(ConnectionId whose);

 private:
  using Waiting = std::vector<std::pair<ConnectionId, proto::GetMicrobatch>>;
  struct Feed {
    proto::Secret key{};
    bool open = false;
    Waiting waiting{};  // until it is open
  };
  struct Reader {
    std::deque<proto::GetMicrobatch> to_read{};  // of feeds that are open
    size_t in_work = 0;                          // with those, and those that wait for a feed
    bool is_read_for = false;
  };
  void deny(ConnectionId whose, const proto::GetMicrobatch& request, const Error& why);
  void send(ConnectionId whose, const proto::GetMicrobatch& request, const Feeder::Fed& fed);

  Connections& connections_;
  Outside& outside_;
  std::map<proto::JobNumber, Feed> feeds_;
  std::map<ConnectionId, Reader> readers_;
};

}  // namespace weft::broker

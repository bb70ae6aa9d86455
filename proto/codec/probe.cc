// Links: how they are measured, and what is believed of them.
#include "proto/codec/wire.h"

namespace weft::proto {

void put(const ProbeLink& from, wire::ProbeLink& to) {
  to.set_round(from.round);
  to.set_peer(put_bytes(from.peer.digest));
  to.set_dials(from.dials);
  put_plain(from.addresses, *to.mutable_addresses());
  to.set_relay_ticket(put_bytes(from.relay_ticket));
  to.set_region(from.region);
  to.set_bytes_max(from.bytes_max);
  to.set_time_max_nanoseconds(static_cast<uint64_t>(from.time_max.count()));
  to.set_deadline_nanoseconds(static_cast<uint64_t>(from.deadline.count()));
}
Status get(const wire::ProbeLink& from, ProbeLink& to) {
  Reader read("ProbeLink");
  to.round = from.round();
  read.digest(from.peer(), to.peer.digest, "peer");
  to.dials = from.dials();
  read.names(from.addresses(), to.addresses, kAddressesMax, "addresses");
  read.secret(from.relay_ticket(), to.relay_ticket, "relay_ticket");
  read.name(from.region(), to.region, "region");
  to.bytes_max = from.bytes_max();
  read.require(to.bytes_max <= kProbeBytesMax, "bytes_max", "more than 2^30 bytes");
  read.duration(from.time_max_nanoseconds(), to.time_max, "time_max_nanoseconds");
  read.duration(from.deadline_nanoseconds(), to.deadline, "deadline_nanoseconds");
  return read.status();
}

void put(const ProbeReport& from, wire::ProbeReport& to) {
  to.set_round(from.round);
  to.set_peer(put_bytes(from.peer.digest));
  to.set_bytes_per_second(from.bytes_per_second);
  to.set_round_trip_nanoseconds(static_cast<uint64_t>(from.round_trip.count()));
  to.set_relayed(from.relayed);
  if (!from.failure) return;
  to.set_failure_code(put_enum<wire::ErrorCode>(from.failure->code));
  to.set_failure_message(put_text(from.failure->message));
}
Status get(const wire::ProbeReport& from, ProbeReport& to) {
  Reader read("ProbeReport");
  to.round = from.round();
  read.digest(from.peer(), to.peer.digest, "peer");
  read.not_negative(from.bytes_per_second(), to.bytes_per_second, "bytes_per_second");
  read.duration(from.round_trip_nanoseconds(), to.round_trip, "round_trip_nanoseconds");
  to.relayed = from.relayed();
  if (from.failure_code() != wire::ERROR_CODE_UNSPECIFIED) {
    to.failure.emplace();
    read.error_code(from.failure_code(), to.failure->code, "failure_code");
    read.message(from.failure_message(), to.failure->message, "failure_message");
  }
  return read.status();
}

void put(const ProbeHello& from, wire::ProbeHello& to) { to.set_round(from.round); }
Status get(const wire::ProbeHello& from, ProbeHello& to) {
  to.round = from.round();
  return {};
}

void put(const ProbeSay& from, wire::ProbeSay& to) {
  to.set_word(put_enum<wire::ProbeWord>(from.word));
  to.set_number(from.number);
}
Status get(const wire::ProbeSay& from, ProbeSay& to) {
  Reader read("ProbeSay");
  read.enumerator(from.word(), to.word, ProbeWord::Turn, "word");
  to.number = from.number();
  return read.status();
}

// ---- what is believed of links

void put(const ListLinks&, wire::ListLinks&) {}
Status get(const wire::ListLinks&, ListLinks&) { return {}; }

void put(const LinkEnd& from, wire::LinkEnd& to) {
  to.set_peer(put_bytes(from.peer.digest));
  to.set_name(from.name);
  to.set_region(from.region);
  to.set_site(from.site);
  to.set_uplink(from.uplink);
  to.set_downlink(from.downlink);
}
Status get(const wire::LinkEnd& from, LinkEnd& to) {
  Reader read("LinkEnd");
  read.digest(from.peer(), to.peer.digest, "peer");
  read.name(from.name(), to.name, "name");
  read.name(from.region(), to.region, "region");
  to.site = from.site();
  read.require(to.site < kListMax, "site", "not below 100,000");
  read.not_negative(from.uplink(), to.uplink, "uplink");
  read.not_negative(from.downlink(), to.downlink, "downlink");
  return read.status();
}

void put(const LinkFigure& from, wire::LinkFigure& to) {
  to.set_from(from.from);
  to.set_to(from.to);
  to.set_bytes_per_second(from.bytes_per_second);
  to.set_latency_nanoseconds(static_cast<uint64_t>(from.latency.count()));
  to.set_assumed(from.assumed);
  to.set_relayed(from.relayed);
  to.set_seconds_since(from.seconds_since);
  to.set_in_use(from.in_use);
}
Status get(const wire::LinkFigure& from, LinkFigure& to) {
  Reader read("LinkFigure");
  to.from = from.from();
  to.to = from.to();
  read.require(to.from < kListMax && to.to < kListMax, "from", "an end is below 100,000");
  read.positive(from.bytes_per_second(), to.bytes_per_second, "bytes_per_second");
  read.duration(from.latency_nanoseconds(), to.latency, "latency_nanoseconds");
  to.assumed = from.assumed();
  to.relayed = from.relayed();
  read.not_negative(from.seconds_since(), to.seconds_since, "seconds_since");
  to.in_use = from.in_use();
  return read.status();
}

void put(const LinkList& from, wire::LinkList& to) {
  put_list(from.ends, *to.mutable_ends());
  put_list(from.between, *to.mutable_between());
  put_list(from.links, *to.mutable_links());
}

namespace {
Status check_ends(const LinkList& list) {
  uint32_t sites = 0;
  for (const LinkEnd& end : list.ends) sites = std::max(sites, end.site + 1);
  const auto check = [](const std::vector<LinkFigure>& figures, size_t ends, const char* what) -> Status {
    for (const LinkFigure& figure : figures)
      if (figure.from >= ends || figure.to >= ends)
        return fail(ErrorCode::OutOfRange, std::string("LinkList.") + what + ": it ends nowhere");
    return {};
  };
  WEFT_TRY_STATUS(check(list.between, sites, "between"));
  return check(list.links, list.ends.size(), "links");
}
}  // namespace

Status get(const wire::LinkList& from, LinkList& to) {
  Reader read("LinkList");
  read.list(from.ends(), to.ends, kListMax, "ends");
  read.list(from.between(), to.between, kListMax, "between");
  read.list(from.links(), to.links, kListMax, "links");
  WEFT_TRY_STATUS(read.status());
  return check_ends(to);
}

}  // namespace weft::proto

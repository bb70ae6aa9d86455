// A library that is no module.
extern "C" __attribute__((visibility("default"))) int nothing_of_weft() { return 0; }

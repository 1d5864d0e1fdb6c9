// Attention sinks: a learned logit a head that takes weight and gives no value (gpt-oss; "softmax off by one" of
// arXiv:2309.17453 with a logit of 0).
struct LearnedSinks : Plain {
  static float extra_logit(const Params& p, int head) { return p.sinks[head]; }
};

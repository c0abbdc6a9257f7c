// What the step of a quantizer that rounds is made of.
enum Statistic : u32 { ABS_MAX, SIGNED_ABS_MAX, ABS_MEAN };

